"""TODO packager/backends/cutlass/gemm."""

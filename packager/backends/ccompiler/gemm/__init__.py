"""TODO packager/backends/ccompiler/gemm."""

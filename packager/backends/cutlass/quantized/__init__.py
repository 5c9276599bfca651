"""TODO packager/backends/cutlass/quantized."""

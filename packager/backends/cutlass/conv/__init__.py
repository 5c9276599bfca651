"""TODO packager/backends/cutlass/conv."""

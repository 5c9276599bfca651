"""TODO packager/backends/cutlass/core."""

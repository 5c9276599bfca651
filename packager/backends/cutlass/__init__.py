"""TODO packager/backends/cutlass."""

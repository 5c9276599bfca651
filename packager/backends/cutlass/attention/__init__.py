"""TODO packager/backends/cutlass/attention."""

"""TODO packager/backends/cuda."""

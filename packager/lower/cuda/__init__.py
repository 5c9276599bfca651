"""TODO packager/lower/cuda."""

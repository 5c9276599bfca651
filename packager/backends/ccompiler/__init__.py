"""TODO packager/backends/ccompiler."""

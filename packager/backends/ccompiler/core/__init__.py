"""TODO packager/backends/ccompiler/core."""

"""TODO packager/backends/ccompiler/ops."""

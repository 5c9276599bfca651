"""TODO packager/backends/llvm."""

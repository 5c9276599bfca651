"""TODO packager/codegen."""

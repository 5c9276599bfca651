"""TODO packager/ir."""

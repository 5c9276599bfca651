"""TODO packager/graph."""

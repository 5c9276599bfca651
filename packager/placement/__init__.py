"""TODO packager/placement."""

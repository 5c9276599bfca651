"""TODO packager/cli."""

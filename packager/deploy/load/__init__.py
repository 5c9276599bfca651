"""TODO packager/deploy/load."""

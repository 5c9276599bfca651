"""TODO packager/deploy/verify."""

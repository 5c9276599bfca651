"""TODO packager/deploy/measure."""

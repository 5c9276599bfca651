"""TODO packager/transforms."""

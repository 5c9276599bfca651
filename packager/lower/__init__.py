"""TODO packager/lower."""

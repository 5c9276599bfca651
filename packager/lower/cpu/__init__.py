"""TODO packager/lower/cpu."""

"""TODO packager/lower/legalize."""

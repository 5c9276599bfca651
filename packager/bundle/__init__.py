"""TODO packager/bundle."""

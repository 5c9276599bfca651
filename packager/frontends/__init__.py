"""TODO packager/frontends."""

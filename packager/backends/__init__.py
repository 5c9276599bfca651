"""TODO packager/backends."""

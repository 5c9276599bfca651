"""TODO packager/link."""

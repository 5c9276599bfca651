"""TODO packager/link/libraries."""

"""TODO packager/plan."""

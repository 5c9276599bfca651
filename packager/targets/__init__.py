"""TODO packager/targets."""

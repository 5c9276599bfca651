"""TODO packager/pipeline."""

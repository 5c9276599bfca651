"""TODO packager/transforms/layout."""

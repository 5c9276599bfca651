"""TODO packager/graph/attention."""

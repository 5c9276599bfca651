"""TODO packager/bundle/isa."""

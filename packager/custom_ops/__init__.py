"""TODO packager/custom_ops."""

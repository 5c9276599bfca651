"""TODO packager/backends/external."""

"""TODO packager/cli/reports."""

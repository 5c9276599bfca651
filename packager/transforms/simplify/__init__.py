"""TODO packager/transforms/simplify."""

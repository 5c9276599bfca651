"""TODO packager/transforms/quantize."""

"""TODO packager/transforms/micro_batch."""

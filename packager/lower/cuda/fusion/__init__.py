"""What decides which operators become one kernel, before TVM fuses them and behind it."""

"""A second set of files that packager was not tuned on: other architectures, opsets, and ways to use the exporters."""

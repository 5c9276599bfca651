"""Architectures that no change of packager was made for before they were first built: see docs/exporters.md."""

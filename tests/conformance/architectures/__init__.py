"""Architectures that people export, in small configurations with random weights, through the whole of packager."""

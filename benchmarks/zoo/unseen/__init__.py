"""Architectures that were written before anything was tuned for them, to see what is missing."""

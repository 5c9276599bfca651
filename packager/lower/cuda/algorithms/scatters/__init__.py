"""Scatters: of a few indices, which each thread reads, and of many, which are sorted once for all that have them."""

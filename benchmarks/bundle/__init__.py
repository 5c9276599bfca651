"""Bundles as files: time and memory of builds, size, load and import."""

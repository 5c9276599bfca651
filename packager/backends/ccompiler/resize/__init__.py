"""Resizing by tables: rows of the result as sums of rows of the data, and along the last axis too."""

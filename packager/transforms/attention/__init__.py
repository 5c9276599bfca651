"""Brings attention into the one form that backends match."""

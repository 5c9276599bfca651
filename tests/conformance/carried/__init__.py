"""Bundles that are built here, and run with their inputs and expected outputs on another machine: one with a GPU."""

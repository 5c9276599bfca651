"""Whole models, matrix products and call overhead on the CPU, beside other engines."""

"""Converters from ATen operators to Relax, a file for each family, and ``program``, which prepares what they take."""

"""Converters from ATen operators to Relax, a file for each family, and ``program``, which prepares what they convert.

``complex_numbers`` converts operators on complex numbers, as pairs of real tensors, by the converters of real ones.
"""

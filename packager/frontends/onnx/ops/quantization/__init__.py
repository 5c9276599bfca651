"""Converters of quantization: ``quantization`` (blocks and 8-bit floats too), ``integer_math``, ``narrow_types``."""

"""Converters of quantized operators: QDQ, blocked and float8 quantization, integer math, narrow element types."""

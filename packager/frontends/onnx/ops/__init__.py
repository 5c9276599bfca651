"""Converters from ONNX operators to Relax, a file per family.

``operands`` (what converters share) and ``converters`` (the table) first; ``nn/`` and ``quantization/`` are folders.
"""

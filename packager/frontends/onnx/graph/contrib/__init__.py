"""Expands onnxruntime's operators (``com.microsoft``, and its own in the standard domain) into standard ones.

Its optimizers and quantizers write them. ``expand`` is the pass; ``body`` is what the rules write nodes with; the rules
are in ``activations``, ``normalization``, ``attention``, ``quantized`` and ``blocks``. Specification:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

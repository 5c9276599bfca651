"""Shared by the families of kernels.

``options``, ``element_types``, ``epilogues`` (match scale, bias, residual and activation), ``activations``, ``kernel``
(configurations and their source), ``drafts`` (primitive functions), ``compile_kernels`` (nvcc).
"""

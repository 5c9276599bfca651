"""What the families of kernels share: ``options``, ``element_types``, ``epilogues`` (matching scale, bias, residual and
activation), ``activations``, ``drafts`` (primitive functions), ``kernel_source``, ``compile_kernels`` (nvcc).
"""

"""Implicit-GEMM convolution: ``problem``, ``kernels``, ``cost_model``."""

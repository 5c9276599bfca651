"""Fused attention: ``match`` (also q, k and v from one GEMM), ``problem``, ``kernels``."""

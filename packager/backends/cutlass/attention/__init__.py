"""Fused attention: ``match``, ``problem``, ``projections`` (q, k and v from one GEMM), ``kernels``."""

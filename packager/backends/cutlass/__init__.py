"""The ``cutlass`` backend: GEMM, convolution and attention with their epilogues, by kernels of NVIDIA's CUTLASS.

In: partitions of CUDA bundles. Out: one object with the launchers, and an object per kernel.

``backend``, ``patterns`` (what it takes), ``module`` (partitions to source to objects), ``candidates`` (which kernels
are shipped); ``core/``, then a folder per family: ``gemm/``, ``conv/``, ``attention/``, ``quantized/``.
"""

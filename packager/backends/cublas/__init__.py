"""The ``cublas`` backend: products of matrices with their epilogues, by NVIDIA's cuBLASLt, which sessions open.

In: partitions of CUDA bundles. Out: one object that states each problem and has the library enqueue it.

``backend``, ``options``, ``patterns`` (what it takes), ``problem`` (what a match is), ``quantized`` (those of 8 bits),
``library`` (what is opened), ``module`` (partitions to source to object).
"""

"""Measures a bundle: ``bench``, ``bench_cuda``, ``profile``, ``tune``; ``random_inputs``, ``cuda_memory``."""

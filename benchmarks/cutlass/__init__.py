"""Kernels of the cutlass backend: numbers, and times beside cuBLASLt, cuDNN and torch."""

"""The ``openblas`` backend of packager: float32 matrix products by the kernels of OpenBLAS."""

from packager_openblas.backend import OpenblasBackend

BACKEND = OpenblasBackend()

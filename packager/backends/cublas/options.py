"""The attributes of the ``cublas`` kind."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.base import PartitionOptions, attribute

OPERATORS = ("dense", "batch_matmul", "conv2d", "int8", "float8", "float8_columns")
FLOAT8_ARCH = 89
"""The first architecture that multiplies 8-bit floats, as a number."""
COLUMNS_ARCH = 90
"""The only one on which the library scales each column of their products."""
MAX_CANDIDATES = 16
"""As PK_CUBLAS_MAX_ANSWERS of templates/cublas/matmul.h."""
LAYOUTS = ("nk", "kn")


@dataclass(frozen=True)
class CublasOptions(PartitionOptions):
    """What a Target says."""

    operators: tuple[str, ...] = attribute((), "Groups of operators to take; none: all of the GPUs", choices=OPERATORS)
    soname: tuple[str, ...] = attribute(
        ("libcublasLt.so.13", "libcublasLt.so.12"), "The library by its sonames, in order of preference"
    )
    candidates: int = attribute(4, "The library's answers to choose from for each problem, by packager tune", minimum=1)
    workspace_mb: int = attribute(32, "Memory that a product may use beside its operands, in the arena", minimum=0)
    gelu_tanh: bool = attribute(True, "Take GELU of half precision, which the library computes by its tanh form")
    weights: str = attribute(
        "nk", "Layout of constant matrices: as cutlass packs them, or as the model has them", choices=LAYOUTS
    )
    tuning: tuple[str, ...] = attribute((), "Files of records that packager tune wrote", is_path=True)

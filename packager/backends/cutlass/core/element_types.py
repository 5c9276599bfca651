"""Element types of kernels: their names in CUTLASS and in kernel names, and their sizes."""

from __future__ import annotations

from typing import NamedTuple

from packager.bundle.dtypes import DTYPES


class ElementType(NamedTuple):
    """An element type: its C++ name, its short name in kernel names, and its size in bytes."""

    cutlass: str
    short: str
    size: int


FLOAT8 = "float8_e4m3fn"
ELEMENTS = {
    dtype: ElementType(cutlass, short, DTYPES[dtype].itemsize)
    for dtype, cutlass, short in (
        ("float16", "cutlass::half_t", "f16"),
        ("bfloat16", "cutlass::bfloat16_t", "bf16"),
        ("float32", "float", "f32"),
        ("int32", "int32_t", "s32"),
        ("int8", "int8_t", "s8"),
        ("uint8", "uint8_t", "u8"),
        (FLOAT8, "cutlass::float_e4m3_t", "e4m3"),
    )
}
# float32 in memory, rounded to TF32 by the multiplication.
ELEMENTS["tfloat32"] = ELEMENTS["float32"]._replace(short="tf32")
# Names of the types in warp.h and gemm_rows.h, for kernels that are written without CUTLASS.
WARP_TYPES = {"float16": "F16", "bfloat16": "Bf16", "float32": "F32"}


def vector_of(dtype: str) -> int:
    """Return how many elements of a type are 16 bytes, the widest access to memory."""
    return 16 // ELEMENTS[dtype].size

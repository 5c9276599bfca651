"""Element types of tensors: one table for the manifest, safetensors, DLPack and numpy.

Names follow numpy and ml_dtypes. numpy is imported only by the functions that return its dtypes.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PRECISIONS = {"fp16": "float16", "bf16": "bfloat16"}
"""What ``--precision`` calls the types of half precision."""
HALVES = tuple(PRECISIONS.values())
FLOATS = (*HALVES, "float32")
"""The types that models compute in: products of matrices on GPUs, and arithmetic that is simplified."""


def wide_type(dtype: str) -> str:
    """Return the type to compute in what is rounded to a type then: float32 for half precision."""
    return "float32" if dtype in HALVES else dtype


@dataclass(frozen=True)
class DType:
    """An element type: its numpy name, its safetensors name, and its DLPack (code, bits)."""

    name: str
    safetensors: str
    code: int
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes per element; sub-byte types are unpacked, one byte each."""
        return (self.bits + 7) // 8


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6  # DLDataTypeCode

PLAIN: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", "BOOL", _BOOL, 8),
        DType("int8", "I8", _INT, 8),
        DType("int16", "I16", _INT, 16),
        DType("int32", "I32", _INT, 32),
        DType("int64", "I64", _INT, 64),
        DType("uint8", "U8", _UINT, 8),
        DType("uint16", "U16", _UINT, 16),
        DType("uint32", "U32", _UINT, 32),
        DType("uint64", "U64", _UINT, 64),
        DType("float16", "F16", _FLOAT, 16),
        DType("float32", "F32", _FLOAT, 32),
        DType("float64", "F64", _FLOAT, 64),
        DType("bfloat16", "BF16", _BFLOAT, 16),
    )
}
# Safetensors has no sub-byte integers, and packs float4: these are stored unpacked, as U8.
NARROW: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float8_e4m3fn", "F8_E4M3", 10, 8),
        DType("float8_e4m3fnuz", "F8_E4M3FNUZ", 11, 8),
        DType("float8_e5m2", "F8_E5M2", 12, 8),
        DType("float8_e5m2fnuz", "F8_E5M2FNUZ", 13, 8),
        DType("float8_e8m0fnu", "F8_E8M0", 14, 8),
        DType("float4_e2m1fn", "U8", 17, 4),
        DType("int4", "U8", _INT, 4),
        DType("uint4", "U8", _UINT, 4),
        DType("int2", "U8", _INT, 2),
        DType("uint2", "U8", _UINT, 2),
    )
}
"""Types of at most 8 bits that numpy lacks. Each element occupies the low bits of one byte."""
DTYPES = PLAIN | NARROW
"""Types of a bundle's inputs and outputs."""
INSIDE = PLAIN | {"float8_e4m3fn": NARROW["float8_e4m3fn"]}
"""Types of tensors inside a bundle; the other narrow types are converted to bytes."""
BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in reversed(DTYPES.values())}  # U8 -> uint8
BY_DLPACK = {(dtype.code, dtype.bits): dtype for dtype in DTYPES.values()}


def extension_dtype(name: str) -> np.dtype[Any] | None:
    """Return the ml_dtypes type as a numpy dtype, or None if ml_dtypes is not installed or lacks it."""
    import numpy as np

    if importlib.util.find_spec("ml_dtypes") is None:
        return None
    found = getattr(importlib.import_module("ml_dtypes"), name, None)
    return None if found is None else np.dtype(found)


def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian numpy dtype for ``name``; raw uint16 or uint8 if it needs ml_dtypes and that is
    absent."""
    import numpy as np

    if name == "bfloat16" or name in NARROW:
        return extension_dtype(name) or np.dtype(f"<u{DTYPES[name].itemsize}")
    return np.dtype(name).newbyteorder("<")


def is_raw(dtype: np.dtype[Any], name: str) -> bool:
    """Whether a numpy dtype holds raw bytes of the narrow type ``name``: uint8, or the void type of ``.npz`` files."""
    return name in NARROW and dtype.itemsize == 1 and (dtype.name == "uint8" or dtype.char == "V")


def typed(array: NDArray[Any], name: str) -> NDArray[Any]:
    """View raw bytes of a narrow type as that type, if ml_dtypes has it; return other arrays unchanged."""
    return array.view(storage_dtype(name)) if is_raw(array.dtype, name) else array

"""The element types of tensors: one table for the manifest, safetensors, DLPack and numpy.

Names are those of numpy and of ml_dtypes. numpy is imported only by the functions that return its dtypes.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DType:
    """An element type: its name here, in a safetensors header, and as DLPack's (code, bits)."""

    name: str
    safetensors: str
    code: int
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes per element: narrow elements have a byte each."""
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
# Safetensors lacks the integers of less than 8 bits, and packs float4: their bytes are U8 there.
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
"""Types of at most 8 bits that numpy lacks. Each element has a byte of its own, whose low bits count."""
DTYPES = PLAIN | NARROW
"""What the inputs and outputs of a bundle may be."""
INSIDE = PLAIN | {"float8_e4m3fn": NARROW["float8_e4m3fn"]}
"""What tensors within a bundle may be. The other narrow types are bytes there."""
BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in reversed(DTYPES.values())}  # of those under U8, uint8
BY_DLPACK = {(dtype.code, dtype.bits): dtype for dtype in DTYPES.values()}


def extension_dtype(name: str) -> np.dtype[Any] | None:
    """Return ml_dtypes' type of this name as a numpy dtype, or None where ml_dtypes is not installed or lacks it."""
    import numpy as np

    if importlib.util.find_spec("ml_dtypes") is None:
        return None
    found = getattr(importlib.import_module("ml_dtypes"), name, None)
    return None if found is None else np.dtype(found)


def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian numpy dtype that holds ``name``; raw uint16 or uint8 for what needs ml_dtypes."""
    import numpy as np

    if name == "bfloat16" or name in NARROW:
        return extension_dtype(name) or np.dtype(f"<u{DTYPES[name].itemsize}")
    return np.dtype(name).newbyteorder("<")


def is_raw(dtype: np.dtype[Any], name: str) -> bool:
    """Whether a numpy dtype holds the bytes of the narrow type ``name``: uint8, or what ``.npz`` files make of it."""
    return name in NARROW and dtype.itemsize == 1 and (dtype.name == "uint8" or dtype.char == "V")


def typed(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the bytes of a narrow type as an array of that type, where ml_dtypes has it; others as they are."""
    return array.view(storage_dtype(name)) if is_raw(array.dtype, name) else array

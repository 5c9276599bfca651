"""The element types of tensors: one table for the manifest, safetensors, DLPack and numpy.

Names are numpy's plus ``bfloat16``. numpy is imported only by the functions that return its dtypes.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type: its name here, in a safetensors header, and as DLPack's (code, bits)."""

    name: str
    safetensors: str
    code: int
    bits: int

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.bits // 8


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6  # DLDataTypeCode

DTYPES: dict[str, DType] = {
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
INSIDE = DTYPES | {"float8_e4m3fn": DType("float8_e4m3fn", "F8_E4M3", 10, 8)}
"""What tensors within a bundle may also be. Inputs, outputs and constants are of DTYPES."""
BY_SAFETENSORS = {dtype.safetensors: dtype for dtype in DTYPES.values()}
BY_DLPACK = {(dtype.code, dtype.bits): dtype for dtype in DTYPES.values()}


def bfloat16_dtype() -> np.dtype[Any] | None:
    """Return ml_dtypes' bfloat16 as a numpy dtype, or None where ml_dtypes is not installed."""
    import numpy as np

    if importlib.util.find_spec("ml_dtypes") is None:
        return None
    ml_dtypes: Any = importlib.import_module("ml_dtypes")
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian numpy dtype that holds ``name``; raw uint16 for bfloat16 without ml_dtypes."""
    import numpy as np

    if name == "bfloat16":
        return bfloat16_dtype() or np.dtype("<u2")
    return np.dtype(name).newbyteorder("<")

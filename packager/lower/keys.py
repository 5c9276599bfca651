"""Integers in the order of a tensor's elements.

NaN is greater than all numbers, and equal to itself, as in torch and numpy; -0 equals 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

# The type of keys by that of floats; narrower floats are widened first, integers are their own keys.
_KEYS = {"float32": "int32", "float64": "int64"}


def key_type(dtype: str) -> str:
    """Return the type of the keys of elements of a type."""
    if dtype.startswith(("float", "bfloat")):
        return _KEYS.get(dtype, "int32")
    return "uint8" if dtype == "bool" else dtype


def key_of(value: Any, dtype: str) -> Any:
    """Return the key of an element of this type."""
    if not dtype.startswith(("float", "bfloat")):
        return _cast(value, key_type(dtype))
    wide = value if dtype in _KEYS else _cast(value, "float32")
    kind = key_type(dtype)
    greatest, zero = tirx.const(int(np.iinfo(kind).max), kind), tirx.const(0, kind)
    bits = tirx.reinterpret(kind, wide)
    ordered = tirx.Select(bits < zero, bits ^ greatest, bits)
    # -0 is found as a float: TVM rewrites a comparison with the least integer into one that overflows.
    ordered = tirx.Select(wide == tirx.const(0.0, str(wide.ty)), zero, ordered)
    return tirx.Select(tirx.isnan(wide), greatest, ordered)


def least_key(dtype: str) -> Any:
    """Return a key below those of all floats of a type."""
    kind = key_type(dtype)
    return tirx.const(int(np.iinfo(kind).min), kind)


def _cast(value: Any, dtype: str) -> Any:
    return value if str(value.ty) == dtype else value.astype(dtype)

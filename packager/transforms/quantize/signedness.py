"""Moves 8-bit data between int8 and uint8: the sign bit is flipped, and the zero point is 128 more or less.

Products of bytes have instructions for one type of data: CPUs for uint8, cuBLASLt for int8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from packager.transforms.quantize.values import Quantized

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# What the same number is more in uint8 than in int8.
SHIFT = 128
OTHER = {"int8": "uint8", "uint8": "int8"}
# Adds a binding of an expression, with a name or without, and returns its variable.
Emit = Callable[..., Any]


def shifted(zero: Array, stored: str) -> Array:
    """Return a zero point of the other type of 8 bits as one of ``stored``."""
    return np.asarray(zero + np.int32(_shift(stored)), np.int32)  # sums of arrays of rank 0 are no arrays


def _shift(stored: str) -> int:
    return SHIFT if stored == "uint8" else -SHIFT


def flipped(emit: Emit, value: Any, name: str = "") -> Any:
    """Emit integers of 8 bits in the other type: 128 is added to int8, and subtracted from uint8."""
    stored = str(value.ty.dtype)
    bits = emit(relax.op.bitwise_xor(value, relax.const(_shift(stored), stored)))
    return emit(relax.op.astype(bits, OTHER[stored]), name)


def as_stored(emit: Emit, value: Quantized, stored: str | None) -> Quantized:
    """Return a quantized tensor as one of ``stored``, whose zero point differs by as much; None leaves it."""
    if stored is None or value.stored == stored or value.array is not None:
        return value
    if isinstance(value.zero, np.ndarray):
        zero = shifted(value.zero, stored)
    else:
        zero = emit(relax.op.add(value.zero, relax.const(_shift(stored), "int32")))
    return replace(value, value=flipped(emit, value.value), zero=zero)

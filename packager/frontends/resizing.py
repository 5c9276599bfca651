"""Resizes axes by tables: of each output the indices of inputs, and their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.resize import Resizing, resize

# Up to this product of taps over all axes one loop nest computes the sum; beyond it, one per axis.
MAX_TAPS = 16


@dataclass(frozen=True)
class ResizedAxis:
    """A resized axis: input indices and weights of each output, [extent, taps], and whether it is outside the input."""

    axis: int
    indices: Array
    weights: Array
    outside: Array


def resize_axes(builder: Any, data: Any, changes: list[ResizedAxis], extrapolation: float = 0.0) -> Any:
    """Return the weighted sums; ``extrapolation`` is the value outside of the input."""
    if not changes:
        return data
    taps = math.prod(change.indices.shape[1] for change in changes)
    if taps > MAX_TAPS and len(changes) > 1:
        for change in changes:
            data = builder.emit(resize_axes(builder, data, [change], extrapolation))
        return data
    dtype = str(data.ty.dtype)
    work = "float64" if dtype in ("float64", "int64", "int32") else "float32"
    tables: list[Any] = []
    for change in changes:
        tables += [relax.const(change.indices, "int32"), relax.const(change.weights.astype(work), work)]
        tables.append(relax.const(change.outside.astype(np.int32), "int32"))
    cropped = tuple(bool(change.outside.any()) for change in changes)
    return resize(data, tables, Resizing(tuple(change.axis for change in changes), cropped, extrapolation))

"""Indexes and reshapes constants as views where possible, and tracks the source of copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.bundle.arrays import Array


def take(array: Array, indices: Array, axis: int | None) -> Array | None:
    """Like ``numpy.take`` for integer indices, but a view if they are evenly spaced, as position indices mostly are.

    Without an axis the array is flattened. Returns None if an index is out of range.
    """
    if axis is None:
        array, axis = array.reshape(-1), 0
    axis %= array.ndim
    extent = array.shape[axis]
    flat = indices.reshape(-1).astype(np.int64)
    if flat.size and (flat.min() < -extent or flat.max() >= extent):
        return None
    flat = np.where(flat < 0, flat + extent, flat)
    shape = (*array.shape[:axis], *indices.shape, *array.shape[axis + 1 :])
    steps = np.diff(flat)
    if flat.size == 0 or (steps != steps[:1]).any():
        return np.take(array, flat, axis).reshape(shape)
    first, step = int(flat[0]), int(steps[0]) if steps.size else 1
    before = (slice(None),) * axis
    if step == 0:
        one = array[(*before, slice(first, first + 1))]
        row = np.broadcast_to(one, (*array.shape[:axis], flat.size, *array.shape[axis + 1 :]))
    else:
        last = first + step * (flat.size - 1)
        stop = last + step
        row = array[(*before, slice(first, stop if stop >= 0 else None, step))]
    return row.reshape(shape)


class TrackedCopy(np.ndarray[Any, Any]):
    """A copy that remembers the array whose elements it holds, ``view_of_source``. It owns its memory."""

    view_of_source: Array


def reshape_tracked(array: Array, shape: tuple[int, ...]) -> Array:
    """Like ``numpy.reshape``, but a copy remembers its source."""
    result = array.reshape(shape)
    if np.may_share_memory(result, array) or not result.size:
        return result
    moved = TrackedCopy(shape, array.dtype)
    moved[...] = result
    moved.view_of_source = array
    return moved.view(np.ndarray)  # derived arrays must not inherit the subclass

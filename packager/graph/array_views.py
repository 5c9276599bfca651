"""Parts of constants as views of them, where numpy would copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.bundle.arrays import Array


def take(array: Array, indices: Array, axis: int | None) -> Array | None:
    """Return ``numpy.take``'s result for integer indices; a view if they are evenly spaced, which positions mostly are.

    Without an axis the array counts as flat. Returns None if an index lies outside.
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


class Moved(np.ndarray[Any, Any]):
    """Elements of another array in another order, ``view_of_source``, where numpy had to copy. It owns its memory."""

    view_of_source: Array


def reshaped(array: Array, shape: tuple[int, ...]) -> Array:
    """Return ``numpy.reshape``'s result; of a copy too it stays known what it is a copy of."""
    result = array.reshape(shape)
    if np.may_share_memory(result, array) or not result.size:
        return result
    moved = Moved(shape, array.dtype)
    moved[...] = result
    moved.view_of_source = array
    return moved.view(np.ndarray)  # what is computed from it shall be no such array

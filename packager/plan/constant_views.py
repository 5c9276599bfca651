"""Finds the strided view through which a constant reads a constant of the model, to repeat it on swapped data."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from packager.bundle.arrays import Array
from packager.graph.array_views import TrackedCopy
from packager.ir.constants import ConstantView

Axes = list[tuple[int, int]]  # extents and strides in elements, outermost first


def find_view(array: Array, source: str, original: Array) -> ConstantView | None:
    """Return the view of ``original``, the constant ``source``, that equals ``array`` in row-major order, or None.

    Also finds permutations of a copy recorded by ``reshape_tracked``.
    """
    if array.dtype != original.dtype or not original.flags.c_contiguous:
        return None
    if array.size == 0:
        return ConstantView(source, (0,), (1,), 0)
    seen = _axes_in(array, original)
    if seen is None:
        seen = _axes_through_copy(array, original)
    if seen is None:
        return None
    offset, axes = seen
    extents, strides = zip(*axes or [(1, 1)], strict=True)
    return ConstantView(source, extents, strides, offset)


def _axes_in(array: Array, original: Array) -> tuple[int, Axes] | None:
    """Return offset and axes of a view, or None."""
    itemsize = original.itemsize
    start = array.__array_interface__["data"][0] - original.__array_interface__["data"][0]
    spans = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    lowest = start + sum(span for span in spans if span < 0)
    highest = start + sum(span for span in spans if span > 0)
    if lowest < 0 or highest + itemsize > original.nbytes:
        return None
    if start % itemsize or any(stride % itemsize for stride in array.strides):
        return None
    return start // itemsize, _collapse([(n, s // itemsize) for n, s in zip(array.shape, array.strides, strict=True)])


def _collapse(axes: Axes) -> Axes:
    """Drop unit axes and fuse contiguous neighbors."""
    made: Axes = []
    for extent, stride in axes:
        if extent == 1:
            continue
        if made and made[-1][1] == stride * extent:
            made[-1] = (made[-1][0] * extent, stride)
        else:
            made.append((extent, stride))
    return made


def _axes_through_copy(array: Array, original: Array) -> tuple[int, Axes] | None:
    """Return offset and axes of a permutation of a copy of ``original``, or None."""
    owner: Any = array
    while not isinstance(owner, TrackedCopy) and isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, TrackedCopy):
        return None
    outer, inner = _axes_in(array, owner), find_view(owner.view_of_source, "", original)
    if outer is None or inner is None or not _is_permutation(outer[1], owner.size):
        return None
    axes = _compose(outer[1], list(zip(inner.extents, inner.strides, strict=True)))
    return None if axes is None else (inner.offset, axes)


def _is_permutation(axes: Axes, size: int) -> bool:
    """Whether axes address each of ``size`` elements exactly once."""
    reached = 1
    for extent, stride in sorted(axes, key=lambda axis: axis[1]):
        if stride != reached:
            return False
        reached *= extent
    return reached == size


def _compose(outer: Axes, inner: Axes) -> Axes | None:
    """Compose views: ``outer`` indexes the elements of ``inner`` in row-major order.

    Returns None if an axis of ``outer`` does not split evenly over those of ``inner``.
    """
    made: Axes = []
    for axis in outer:
        left, step = axis
        split: Axes = []
        for index in reversed(range(len(inner))):
            size, stride = inner[index]
            below = prod(n for n, _ in inner[index + 1 :])
            if left == 1 or step >= below * size:
                continue
            apart = step // below
            count = min(left, size // apart)
            if step % below or size % apart or left % count:
                return None
            split.insert(0, (count, stride * apart))
            left, step = left // count, below * size
        made += split
    return _collapse(made)

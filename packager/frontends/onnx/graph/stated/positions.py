"""Rules of Slice and Pad whose positions a run gives: the extents of their results are stated."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from packager.frontends.onnx.graph.contrib.body import Body

Shape = tuple[int, ...]


class NotStatedError(Exception):
    """The extents of a value are unknown."""


def static(b: Body, name: str) -> Shape:
    """Return the extents of a value. Raises NotStatedError."""
    known = [extent for extent in b.extents(name) if extent is not None]
    if not name or len(known) != len(b.extents(name)):
        raise NotStatedError
    return tuple(known)


def _sum(b: Body, x: str) -> str:
    """Return the sum over axis 0."""
    return b("ReduceSum", x, b.integers(0), keepdims=0) if b.opset >= 13 else b("ReduceSum", x, axes=[0], keepdims=0)


def _named(b: Body, place: int, count: int, rank: int) -> str:
    """Return which of the rank axes each of ``count`` parameters is for, as a matrix of 0 and 1."""
    axes = b.integers(*range(count))
    if b.input(place):
        axes = b("Mod", b("Cast", b.input(place), to=TensorProto.INT64), b.array(rank, np.int64))
    same = b("Equal", b.unsqueezed(axes, 1), b.integers(*range(rank)))
    return b("Cast", same, to=TensorProto.INT64)


def _touched(b: Body, place: int, count: int, rank: int) -> list[int]:
    """Return the axes that the parameters may be for: all if a run gives them."""
    if not b.input(place):
        return list(range(count))
    try:
        return [int(axis) % rank for axis in b.constant_of(b.input(place), "axes")]
    except ValueError:
        return list(range(rank))


def sliced(b: Body) -> list[str]:
    """Gather from the start of the run along each axis."""
    old, new = static(b, b.input(0)), static(b, b.output(0))
    rank, wide = len(old), TensorProto.INT64
    (count,) = static(b, b.input(1))
    named = _named(b, 3, count, rank)

    def of_axes(values: str) -> str:
        return _sum(b, b("Mul", named, b.unsqueezed(values, 1)))

    start, size, zero, one = of_axes(b("Cast", b.input(1), to=wide)), b.integers(*old), *map(b.integers, (0, 1))
    steps = b("Cast", b.input(4), to=wide) if b.input(4) else b.integers(*[1] * count)
    step = b("Add", of_axes(steps), b("Sub", one, of_axes(b.integers(*[1] * count))))
    start = b("Where", b("Less", start, zero), b("Add", start, size), start)
    last = b("Where", b("Less", step, zero), b("Sub", size, one), size)
    start = b("Min", b("Max", start, zero), last)
    result = b.input(0)
    for axis in _touched(b, 3, count, rank):
        first, by = (b("Gather", vector, b.array(axis, np.int64)) for vector in (start, step))
        places = b("Add", first, b("Mul", b.integers(*range(new[axis])), by))
        result = b("Gather", result, places, axis=axis)
    return [result]


def padded(b: Body) -> list[str]:
    """Gather along each axis, from the positions that the mode says."""
    old, new, mode = static(b, b.input(0)), static(b, b.output(0)), b.flag("mode", "constant")
    rank, count = len(old), static(b, b.input(1))[0] // 2
    if 0 in old:
        raise NotStatedError
    pads = b("Slice", b("Cast", b.input(1), to=TensorProto.INT64), b.integers(0), b.integers(count))
    before = _sum(b, b("Mul", _named(b, 3, count, rank), b.unsqueezed(pads, 1)))
    value = b("Reshape", b.input(2) or b.number(0, b.input(0)), b.array(np.empty(0), np.int64))
    result, zero = b.input(0), b.array(0, np.int64)
    for axis in _touched(b, 3, count, rank):
        extent, made = old[axis], new[axis]
        size, last = b.array(extent, np.int64), b.array(extent - 1, np.int64)
        places = b("Sub", b.integers(*range(made)), b("Gather", before, b.array(axis, np.int64)))
        safe = b("Max", b("Min", places, last), zero)
        if mode == "reflect":
            period = b.array(max(1, 2 * (extent - 1)), np.int64)
            turn = b("Mod", places, period)
            safe = b("Min", turn, b("Sub", period, turn))
        elif mode == "wrap":
            safe = b("Mod", places, size)
        result = b("Gather", result, safe, axis=axis)
        if mode == "constant":
            column = b.integers(*(-1 if other == axis else 1 for other in range(rank)))
            inside = b("Equal", safe, places)
            result = b("Where", b("Reshape", inside, column), result, value)
    return [result]

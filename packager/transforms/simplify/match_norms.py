"""Matches normalizations that are written out: (x - mean) / sqrt(variance + epsilon), and the forms that mean the same.

``raise_norms.py`` lists the forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of
from packager.graph.normalize import Normalization

VIEWS = ("reshape", "expand_dims")
POWERS = {"sqrt": 0.5, "rsqrt": -0.5}
# The greatest lower bound of a vector's length that stands for none: float16 has no other length below 6e-8 than zero.
LEAST_LENGTH = 1e-10


@dataclass(frozen=True)
class Written:
    """A normalization of ``data``, then a scale and a shift, if there are any."""

    data: Any
    attributes: Normalization
    scale: Any = None
    shift: Any = None


@dataclass(frozen=True)
class _Deviation:
    """``scale * (variance + epsilon) ** power`` of ``data``, power 0.5 or -0.5."""

    data: Any
    attributes: Normalization
    power: float
    scale: Any = None


def find_written(flow: Dataflow, variable: Any) -> Written | None:
    """Return the normalization that ends in ``variable``, or None."""
    value = flow.value(variable)
    match operator_of(value):
        case "divide":
            whole = _centered(flow, value.args[0], _deviation(flow, value.args[1]), 0.5)
            return whole or _of_length_one(flow, *value.args)
        case "multiply":
            found = (_centered(flow, a, _deviation(flow, b), -0.5) for a, b in permutations(value.args))
            return next((written for written in found if written is not None), None)
        case "add":
            found = (_distributed(flow, a, b) for a, b in permutations(value.args))
            return next((written for written in found if written is not None), None)
    return None


def _centered(flow: Dataflow, centered: Any, deviation: _Deviation | None, power: float) -> Written | None:
    """Match the difference from the mean (the data itself for RMS) times the inverse deviation."""
    if deviation is None or deviation.power != power:
        return None
    attributes = deviation.attributes
    data = _difference(flow, centered, attributes.axes) if attributes.centered else centered
    if data is None or not data.same_as(deviation.data):
        return None
    return Written(data, attributes, deviation.scale)


def _of_length_one(flow: Dataflow, data: Any, divisor: Any) -> Written | None:
    """Match ``x / max(sqrt(sum(x * x)), epsilon)`` along axes, as an RMS normalization, if its epsilon hardly matters.

    That is ``normalize`` of torch: the epsilon of a normalization is added to squares, which are far greater.
    """
    spread = flow.call(divisor, "broadcast_to")
    length = flow.call(divisor if spread is None else spread.args[0], "maximum")
    epsilon = scalar_of(length.args[1]) if length is not None else None
    root = flow.call(length.args[0], "sqrt") if length is not None else None
    found = _reduction(flow, root.args[0], "sum") if root is not None else None
    if found is None or epsilon is None or not 0 < epsilon <= LEAST_LENGTH:
        return None
    extents = [(shape_of(found[0]) or ())[axis] for axis in found[1]]
    squared = _squared(flow, found[0])
    if squared is None or not squared.same_as(data) or not all(isinstance(extent, int) for extent in extents):
        return None
    count = math.prod(extents)
    scale = relax.const(count**-0.5, str(data.ty.dtype))
    return Written(data, Normalization(found[1], epsilon**2 / count, centered=False), scale)


def _distributed(flow: Dataflow, scaled: Any, shifted: Any) -> Written | None:
    """Match ``x * k + (shift - mean * k)``."""
    product, difference = flow.call(scaled, "multiply"), flow.call(shifted, "subtract")
    if product is None or difference is None:
        return None
    removed = flow.call(difference.args[1], "multiply")
    if removed is None:
        return None
    for data, factor in permutations(product.args):
        for mean, other in permutations(removed.args):
            deviation = _deviation(flow, factor) if factor.same_as(other) else None
            if deviation is None or deviation.power != -0.5 or not deviation.attributes.centered:
                continue
            found = _mean(flow, mean)
            if found is not None and _equal(found, (data, deviation.attributes.axes), deviation.data):
                return Written(data, deviation.attributes, deviation.scale, difference.args[0])
    return None


def _equal(mean: tuple[Any, tuple[int, ...]], wanted: tuple[Any, tuple[int, ...]], data: Any) -> bool:
    return bool(mean[0].same_as(wanted[0]) and mean[1] == wanted[1] and data.same_as(wanted[0]))


def _deviation(flow: Dataflow, operand: Any) -> _Deviation | None:
    """Match sqrt(variance + epsilon), its inverse in several forms, and the inverse times a scale."""
    value = flow.value(operand)
    match operator_of(value):
        case "sqrt" | "rsqrt" as name:
            return _variance_plus_epsilon(flow, value.args[0], POWERS[name])
        case "power" if scalar_of(value.args[1]) in (0.5, -0.5):
            return _variance_plus_epsilon(flow, value.args[0], scalar_of(value.args[1]) or 0.0)
        case "divide" if scalar_of(value.args[0]) == 1.0:
            inner = _deviation(flow, value.args[1])
            inverted = inner is not None and inner.power == 0.5 and inner.scale is None
            return _Deviation(inner.data, inner.attributes, -0.5) if inverted and inner is not None else None
        case "multiply":
            for factor, scale in permutations(value.args):
                inner = _deviation(flow, factor) if scalar_of(scale) is None else None
                if inner is not None and inner.power == -0.5 and inner.scale is None:
                    return _Deviation(inner.data, inner.attributes, -0.5, scale)
    return None


def _variance_plus_epsilon(flow: Dataflow, operand: Any, power: float) -> _Deviation | None:
    """Match the sum, or the variance alone: torch's newer ONNX exporter leaves out an epsilon of 1e-8."""
    total = flow.call(operand, "add")
    sums = [(operand, 0.0)] if total is None else [(one, scalar_of(other)) for one, other in permutations(total.args)]
    for variance, epsilon in sums:
        if epsilon is None or epsilon < 0:
            continue
        for data, axes, centered in _variances(flow, variance):
            return _Deviation(data, Normalization(axes, epsilon, centered=centered), power)
    return None


def _variances(flow: Dataflow, operand: Any) -> Iterator[tuple[Any, tuple[int, ...], bool]]:
    """Yield the data, axes, and whether the mean is subtracted, of a variance or a mean of squares."""
    clamped = flow.call(operand, "maximum")
    if clamped is not None and scalar_of(clamped.args[1]) == 0.0:
        operand = clamped.args[0]
    found = _reduction(flow, operand, "variance")
    if found is not None:
        yield (*found, True)
        return
    found = _mean(flow, operand)
    if found is not None:
        data = _squared(flow, found[0])
        if data is not None:
            inner = _difference(flow, data, found[1])
            yield (data, found[1], False) if inner is None else (inner, found[1], True)
        return
    difference = flow.call(operand, "subtract")  # the mean of squares minus the square of the mean
    if difference is None:
        return
    squares, square = _mean(flow, difference.args[0]), _squared(flow, difference.args[1])
    mean = _mean(flow, square) if square is not None else None
    data = _squared(flow, squares[0]) if squares is not None else None
    if data is not None and mean is not None and squares is not None and _equal(mean, (data, squares[1]), data):
        yield (data, mean[1], True)


def _squared(flow: Dataflow, operand: Any) -> Any | None:
    """Return what ``operand`` is the square of, or None."""
    value = flow.value(operand)
    match operator_of(value):
        case "square":
            return value.args[0]
        case "multiply" if value.args[0].same_as(value.args[1]):
            return value.args[0]
        case "power" if scalar_of(value.args[1]) == 2.0:
            return value.args[0]
    return None


def _difference(flow: Dataflow, operand: Any, axes: tuple[int, ...]) -> Any | None:
    """Return the tensor whose mean along ``axes`` is subtracted from it, or None."""
    value = flow.call(operand, "subtract")
    if value is None:
        return None
    data, mean = value.args
    found = _mean(flow, mean)
    return data if found is not None and found[1] == axes and found[0].same_as(data) else None


def _mean(flow: Dataflow, operand: Any) -> tuple[Any, tuple[int, ...]] | None:
    return _reduction(flow, operand, "mean")


def _reduction(flow: Dataflow, operand: Any, name: str) -> tuple[Any, tuple[int, ...]] | None:
    """Return the data and the axes of a reduction that keeps them, or whose result is viewed as if it did."""
    value = flow.call(operand, name)
    view = flow.call(operand, *VIEWS) if value is None else None
    if view is not None:
        value = flow.call(view.args[0], name)
    if value is None or not isinstance(value.args[0], relax.Var):
        return None
    shape, result = shape_of(value.args[0]), shape_of(operand)
    if shape is None or result is None or len(shape) != len(result):
        return None
    axes = tuple(sorted(int(axis) % len(shape) for axis in value.attrs.axis or range(len(shape))))
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return (value.args[0], axes) if same(kept, result) else None

"""Arithmetic on symbolic extents in ONNX graphs: what exporters compute from ``Shape`` to reshape and expand with.

Integers that follow from the sizes of dims are kept as expressions over the dims, as far as operators are known here.
Each is a tensor of the graph as well, so that any other operator can read it; what nobody reads vanishes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.frontends.onnx_extent_functions import FUNCTIONS, expression, reshape, slice_integers

Array = NDArray[Any]
# More integers than these are no shape.
LARGEST = 64
# What ``Slice`` says for "to the end".
FAR = 2**31 - 1


class SymbolicExtents:
    """Integers over the dims, as object arrays, by the handles of the variables that hold the same as tensors."""

    def __init__(self, analyzer: Any) -> None:
        self.analyzer = analyzer
        self._known: dict[int, tuple[Any, Array]] = {}

    def convert(self, builder: Any, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Return what a node gives if symbolic extents decide it, else None."""
        operands = [*inputs]
        if name == "Shape":
            extents = _extents(operands[0])
            if extents is None or all(isinstance(extent, int) for extent in extents):
                return None
            chosen = extents[slice(attributes.get("start", 0), attributes.get("end"))]
            return self._tensor(builder, _objects(chosen))
        if not any(self._symbolic(operand) for operand in operands):
            return None
        if name in _CONSUMERS:
            return _CONSUMERS[name](self, builder, operands, attributes)
        if name not in FUNCTIONS:
            return None
        values = [None if operand is None else self.value(operand) for operand in operands]
        if any(value is None and operand is not None for value, operand in zip(values, operands, strict=True)):
            return None
        result = FUNCTIONS[name](values, attributes)
        return None if result is None else self._tensor(builder, result)

    def value(self, operand: Any) -> Array | None:
        """Return the integers of an operand, None if they are not known or too many."""
        if isinstance(operand, GenericConst):
            array = np.asarray(operand.value.numpy())
            small = array.dtype.kind in "iu" and array.size <= LARGEST
            return array.astype(object) if small else None
        known = self._known.get(operand.__chandle__()) if isinstance(operand, relax.Var) else None
        return None if known is None else known[1]

    def simplify(self, extent: Any) -> Any:
        """Return an extent in a simple form; an int if it is one."""
        if isinstance(extent, int):
            return extent
        extent = self.analyzer.simplify(extent)
        return int(extent) if isinstance(extent, tirx.IntImm) else extent

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two extents are equal for all sizes of the dims."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return bool(self.analyzer.can_prove_equal(a, b))

    def at_most(self, a: Any, b: Any) -> bool:
        """Whether an extent is never above another one."""
        difference = self.simplify(b - a)
        return difference >= 0 if isinstance(difference, int) else bool(self.analyzer.can_prove(difference >= 0))

    def _symbolic(self, operand: Any) -> bool:
        return isinstance(operand, relax.Var) and operand.__chandle__() in self._known

    def _tensor(self, builder: Any, extents: Array) -> Any:
        """Return a variable that holds these integers, or a constant if they are numbers."""
        extents = _objects([self.simplify(extent) for extent in extents.flat]).reshape(extents.shape)
        if all(isinstance(extent, int) for extent in extents.flat):
            return relax.const(extents.astype(np.int64), "int64")
        parts = [
            relax.const(np.array([extent]), "int64")
            if isinstance(extent, int)
            else builder.emit(relax.op.arange(extent, extent + 1, 1, "int64"))
            for extent in extents.flat
        ]
        flat = builder.emit(relax.op.concat(parts, 0)) if len(parts) > 1 else parts[0]
        # A variable of its own, whatever the shape: nothing else may be known by it.
        variable = builder.emit(relax.op.reshape(flat, extents.shape))
        self._known[variable.__chandle__()] = (variable, extents)
        return variable


def _extents(data: Any) -> list[Any] | None:
    shape = getattr(getattr(data, "ty", None), "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in shape.values]


def _objects(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


# Operators that read a shape.


def _reshape(extents: SymbolicExtents, builder: Any, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    data, shape = operands[0], extents.value(operands[1])
    values = extents.value(data)
    if values is not None:
        result = None if shape is None else reshape([values, shape], attributes)
        return None if result is None else extents._tensor(builder, result)
    source = _extents(data)
    if shape is None or source is None:
        return None
    copied = not attributes.get("allowzero", 0)
    wanted = [source[axis] if copied and _is(extent, 0) else extent for axis, extent in enumerate(shape)]
    if any(_is(extent, -1) for extent in wanted):
        rest = reduce(operator.mul, (extent for extent in wanted if not _is(extent, -1)), 1)
        size = reduce(operator.mul, source, 1)
        missing = extents.simplify(tirx.floordiv(expression(size), expression(rest)))
        wanted = [missing if _is(extent, -1) else extent for extent in wanted]
    return relax.op.reshape(data, wanted)


def _expand(extents: SymbolicExtents, _builder: Any, operands: Sequence[Any], _attributes: Mapping[str, Any]) -> Any:
    """Broadcast both ways, as ``Expand`` does."""
    shape, source = extents.value(operands[1]), _extents(operands[0])
    if shape is None or source is None:
        return None
    wanted: list[Any] = [1] * (len(source) - shape.size) + list(shape.flat)
    have = [1] * (len(wanted) - len(source)) + source
    result = []
    for a, b in zip(have, wanted, strict=True):
        if not (_is(a, 1) or _is(b, 1) or extents.equal(a, b)):
            return None
        result.append(b if _is(a, 1) else a)
    return relax.op.broadcast_to(operands[0], result)


def _constant_of_shape(
    extents: SymbolicExtents, _builder: Any, operands: Sequence[Any], attributes: Mapping[str, Any]
) -> Any:
    shape = extents.value(operands[0])
    value = attributes.get("value")
    array = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if shape is None:
        return None
    return relax.op.broadcast_to(relax.const(array.reshape(()), array.dtype.name), list(shape.flat))


def _range(extents: SymbolicExtents, _builder: Any, operands: Sequence[Any], _attributes: Mapping[str, Any]) -> Any:
    values = [extents.value(operand) for operand in operands]
    if any(value is None or value.size != 1 for value in values):
        return None
    start, limit, delta = (value.item() for value in values if value is not None)
    if not _is(delta, 1) or not extents.at_most(start, limit):
        return None
    return relax.op.arange(start, limit, 1, "int64")


def _slice_data(extents: SymbolicExtents, builder: Any, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    values = [None if operand is None else extents.value(operand) for operand in operands]
    if values[0] is not None:
        known = [value for value in values if value is not None]
        result = slice_integers(known, attributes) if len(known) == len(operands) else None
        return None if result is None else extents._tensor(builder, result)
    source = _extents(operands[0])
    starts, ends = (list(value.flat) if value is not None else None for value in values[1:3])
    if source is None or starts is None or ends is None:
        return None
    given = values[3] if len(values) > 3 else None
    axes = list(range(len(starts))) if given is None else [int(axis) % len(source) for axis in given.flat]
    steps = values[4] if len(values) > 4 else None
    if steps is not None and not all(_is(step, 1) for step in steps.flat):
        return None
    begins, stops = [], []
    for axis, start, end in zip(axes, starts, ends, strict=True):
        begin, stop = (_bound(extents, bound, source[axis]) for bound in (start, end))
        if begin is None or stop is None:
            return None
        begins.append(begin if extents.at_most(begin, stop) else tirx.min(expression(begin), expression(stop)))
        stops.append(stop)
    return relax.op.strided_slice(operands[0], axes, begins, stops, [1] * len(axes), assume_inbound=True)


def _bound(extents: SymbolicExtents, bound: Any, extent: Any) -> Any:
    """Return a start or an end as a place within the axis; None if it may be negative."""
    if isinstance(bound, int):
        if bound >= FAR:
            return extent
        if bound < 0:
            bound = extents.simplify(extent + bound)
    if not extents.at_most(0, bound):
        return None
    return bound if extents.at_most(bound, extent) else tirx.min(expression(bound), expression(extent))


def _is(extent: Any, number: int) -> bool:
    return isinstance(extent, int) and extent == number


_CONSUMERS: Mapping[str, Callable[..., Any]] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Slice": _slice_data,
}

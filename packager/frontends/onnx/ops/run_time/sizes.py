"""Converters of operators whose output size depends on data: NonZero, Compress, Unique, NonMaxSuppression.

The result is computed into room for its maximum (``lower.sorting``), and its first slices, as many as there are, are
taken: their number is a run-time extent (``frontends.onnx.ops.run_time.extents``).

ONNX operators NonZero (version 13), Compress (11), Unique (11), NonMaxSuppression (11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    constant,
    dtype_of,
    extents,
    optional,
    tensor_constant,
)
from packager.frontends.onnx.ops.run_time.extents import LARGEST, take_first
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor
from packager.lower import sorting


def _found(
    builder: Any, attributes: Mapping[str, Any], rooms: Sequence[tuple[Any, int]], count: Any, bound: Any, kind: str
) -> list[Any]:
    """Return the first ``count`` slices of each room along its axis."""
    found = attributes["tvm_custom"]["extents"].read(builder, count, bound, kind)
    return [take_first(builder, room, found, axis) for room, axis in rooms]


def _int64(value: Any) -> Any:
    """Return an extent as an expression of type int64."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _non_zero(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    shape = [_int64(extent) for extent in extents(inputs[0])]
    if not shape:
        raise ValueError("NonZero of a scalar")
    flat = builder.emit(relax.op.reshape(inputs[0], [math.prod(shape)]))
    chosen = _positions(builder, flat, attributes, "nonzero")

    def indices(flat_index: Any, inner: Sequence[Any]) -> Any:
        def index(axis: Any, i: Any) -> Any:
            rest, parts = flat_index(i), []
            for extent in reversed(inner):
                parts.append(tirx.truncmod(rest, extent))
                rest = tirx.truncdiv(rest, extent)
            parts = [rest, *reversed(parts)]
            result = parts[-1]
            for number in reversed(range(len(parts) - 1)):
                result = tirx.Select(axis == number, parts[number], result)
            return result

        return te.compute((len(shape), flat_index.shape[0]), index, name="indices")

    # The extents are operands: those that only the divisions have would be parameters of no function.
    return builder.call_te(indices, chosen, shape[1:], primfunc_name_hint="non_zero")


def _positions(builder: Any, flags: Any, attributes: Mapping[str, Any], kind: str) -> Any:
    """Return the indices of elements that are set, as many as there are."""
    (number,) = extents(flags)
    most = attributes["tvm_custom"]["extents"].maximum(number)
    indices, count = _fields(builder, sorting.positions(flags, most))
    return _found(builder, attributes, [(indices, 0)], count, number, kind)[0]


def _fields(builder: Any, call: Any) -> list[Any]:
    result = builder.emit(call)
    return [builder.emit(relax.TupleGetItem(result, number)) for number in range(len(result.ty.fields))]


def _compress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Gather the slices whose condition is true; they may be any, so their indices are computed first."""
    shape, flags = [_int64(e) for e in extents(inputs[0])], _int64(extents(inputs[1])[0])
    axis, data, condition = attributes.get("axis"), inputs[0], inputs[1]
    if axis is None:
        shape, axis = [math.prod(shape)], 0
        data = builder.emit(relax.op.reshape(data, shape))
    axis %= len(shape)
    if not structural_equal(flags, shape[axis]):
        condition = take_first(builder, condition, tirx.min(flags, shape[axis]))
    return relax.op.take(data, _positions(builder, condition, attributes, "compress"), axis)


def _unique(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    shape = [_int64(extent) for extent in extents(inputs[0])]
    axis = attributes.get("axis")
    if axis is None:
        shape, axis = [math.prod(shape)], 0
    axis %= len(shape)
    number = shape[axis]
    slices = [math.prod(shape[:axis], start=_int64(1)), number, math.prod(shape[axis + 1 :], start=_int64(1))]
    data = builder.emit(relax.op.reshape(inputs[0], slices))
    most = attributes["tvm_custom"]["extents"].maximum(number)
    fields = _fields(builder, sorting.unique(data, bool(attributes.get("sorted", 1)), most))
    values, firsts, inverse, counts, count = fields
    values = builder.emit(relax.op.reshape(values, shape))
    rooms = [(values, axis), (firsts, 0), (counts, 0)]
    values, firsts, counts = _found(builder, attributes, rooms, count, number, "unique")
    return relax.Tuple([values, firsts, inverse, counts])


def _suppress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    boxes, scores = inputs[:2]
    batch, number, _ = (_int64(extent) for extent in extents(boxes))
    classes, dtype = _int64(extents(scores)[1]), dtype_of(boxes)
    kept = _most_boxes(builder, optional(inputs, 2), attributes, number)
    if isinstance(kept, tirx.IntImm) and not kept.value:
        return tensor_constant(np.zeros((0, 3), np.int64))
    lowest = tensor_constant(np.full(1, -np.inf, dtype))
    overlap, least = optional(inputs, 3), optional(inputs, 4)
    none = tensor_constant(np.zeros(1, dtype))
    limit = none if overlap is None else builder.emit(relax.op.reshape(overlap, [1]))
    floor = lowest if least is None else builder.emit(relax.op.reshape(least, [1]))
    centered = bool(attributes.get("center_point_box", 0))
    most = attributes["tvm_custom"]["extents"].maximum(number)
    call = sorting.non_max_suppression(boxes, scores, limit, floor, kept, centered, most)
    chosen, count = _fields(builder, call)
    total = batch * classes * kept
    chosen = builder.emit(relax.op.reshape(chosen, [total, 3]))
    return _found(builder, attributes, [(chosen, 0)], count, total, "nms")[0]


def _most_boxes(builder: Any, given: Any, attributes: Mapping[str, Any], number: Any) -> Any:
    """Return the maximum number of boxes per class: 0 if it is not given, ``number`` of the boxes at most."""
    if given is None:
        return tirx.const(0, "int64")
    value = constant(given, attributes)
    if value is not None:
        most = max(0, int(value.item()))
        return (
            tirx.IntImm("int64", min(most, number.value))
            if isinstance(number, tirx.IntImm)
            else (tirx.min(tirx.IntImm("int64", min(most, LARGEST)), number))
        )
    scalar = builder.emit(relax.op.reshape(given, [1]))
    within = builder.emit(relax.op.minimum(scalar, as_tensor(builder, relax.ShapeExpr([number]))))
    within = builder.emit(relax.op.maximum(within, relax.const(0, "int64")))
    return attributes["tvm_custom"]["extents"].read(builder, within, number, "most")


CONVERTERS: Mapping[str, Converter] = {
    "NonZero": _non_zero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _suppress,
}

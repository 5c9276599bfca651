"""Converters of operators whose output size depends on data: NonZero, Compress, Unique, NonMaxSuppression.

The result is computed into room for its maximum, and its first slices, as many as there are, are taken: their number is
a run-time extent (``frontends.onnx.ops.run_time.extents``).

ONNX operators NonZero (version 13), Compress (11), Unique (11), NonMaxSuppression (11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

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
from packager.frontends.onnx.ops.shape_arithmetic import as_tensor
from packager.frontends.onnx.ops.tir_loops import emit_sequential


def _found(
    builder: Any, attributes: Mapping[str, Any], rooms: Sequence[tuple[Any, int]], count: Any, bound: Any, kind: str
) -> list[Any]:
    """Return the first ``count`` slices of each room along its axis."""
    found = attributes["tvm_custom"]["extents"].read(builder, count, bound, kind)
    return [take_first(builder, room, found, axis) for room, axis in rooms]


def _int64(value: Any) -> Any:
    """Return an extent as an expression of type int64."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _is_set(value: Any, dtype: str) -> Any:
    """Tell whether a value is nonzero or NaN, for which LLVM's ordered comparison is false."""
    if dtype == "bool":
        return value
    different = value != tirx.const(0, dtype)
    return tirx.any(different, tirx.isnan(value)) if dtype.startswith(("float", "bfloat")) else different


def _non_zero(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    shape, dtype = [_int64(extent) for extent in extents(inputs[0])], dtype_of(inputs[0])
    if not shape:
        raise ValueError("NonZero of a scalar")
    total = math.prod(shape)

    def body(x: Any, indices: Any, count: Any) -> None:
        count[0] = tirx.const(0, "int64")
        with T.serial(0, total) as i, T.If(_is_set(x[i], dtype)), T.Then():
            rest = i
            for axis, extent in reversed([*enumerate(shape)]):
                indices[count[0] + axis * total] = tirx.truncmod(rest, extent) if axis else rest
                rest = tirx.truncdiv(rest, extent)
            count[0] = count[0] + tirx.const(1, "int64")

    outs = [((len(shape), total), "int64"), ((1,), "int64")]
    indices, count = emit_sequential(builder, "non_zero", [inputs[0]], outs, body)
    return _found(builder, attributes, [(indices, 1)], count, total, "nonzero")[0]


def _compress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Gather the slices whose condition is true; they may be any, so their indices are computed first."""
    shape, flags = [_int64(e) for e in extents(inputs[0])], _int64(extents(inputs[1])[0])
    axis, data = attributes.get("axis"), inputs[0]
    if axis is None:
        shape, axis = [math.prod(shape)], 0
        data = builder.emit(relax.op.reshape(data, shape))
    axis %= len(shape)
    most = tirx.min(flags, shape[axis])

    def body(condition: Any, indices: Any, count: Any) -> None:
        count[0] = tirx.const(0, "int64")
        with T.serial(0, most) as i, T.If(condition[i]), T.Then():
            indices[count[0]] = i
            count[0] = count[0] + tirx.const(1, "int64")

    outs = [((most,), "int64"), ((1,), "int64")]
    indices, count = emit_sequential(builder, "compress", [inputs[1]], outs, body)
    chosen = _found(builder, attributes, [(indices, 0)], count, most, "compress")[0]
    return relax.op.take(data, chosen, axis)


def _unique(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Rank the distinct slices by comparing all pairs."""
    shape, dtype = [_int64(extent) for extent in extents(inputs[0])], dtype_of(inputs[0])
    axis = attributes.get("axis")
    if axis is None:
        shape, axis = [math.prod(shape)], 0
    axis %= len(shape)
    outer, number, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    in_order = bool(attributes.get("sorted", 1))
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def body(
        x: Any, values: Any, firsts: Any, inverse: Any, counts: Any, count: Any, same: Any, order: Any, rank: Any
    ) -> None:
        """``same``: index of the first equal slice; ``order``: comparison of two slices, -1, 0 or 1."""
        count[0] = zero
        with T.serial(0, number) as i:
            counts[i] = zero

        def compare(j: Any, i: Any) -> None:
            order[0] = zero
            with T.serial(0, outer) as o, T.serial(0, inner) as k:
                left, right = x[(o * number + j) * inner + k], x[(o * number + i) * inner + k]
                with T.If(tirx.all(order[0] == zero, left < right)), T.Then():
                    order[0] = -one
                with T.If(tirx.all(order[0] == zero, left > right)), T.Then():
                    order[0] = one

        with T.serial(0, number) as i:
            same[i] = i.astype("int64")
            with T.serial(0, number) as j, T.If(tirx.all(j < i, same[i] == i.astype("int64"))), T.Then():
                compare(j, i)
                with T.If(order[0] == zero), T.Then():
                    same[i] = j.astype("int64")
        with T.serial(0, number) as i:
            rank[0] = zero
            with T.serial(0, number) as j, T.If(same[j] == j.astype("int64")), T.Then():
                if in_order:
                    compare(j, i)
                else:
                    order[0] = tirx.Select(j.astype("int64") < same[i], -one, zero)
                with T.If(order[0] < zero), T.Then():
                    rank[0] = rank[0] + one
            inverse[i] = rank[0]
            counts[rank[0]] = counts[rank[0]] + one
            with T.If(same[i] == i.astype("int64")), T.Then():
                count[0] = count[0] + one
                firsts[rank[0]] = i.astype("int64")
                with T.serial(0, outer) as o, T.serial(0, inner) as k:
                    values[(o * number + rank[0]) * inner + k] = x[(o * number + i) * inner + k]

    whole = ((number,), "int64")
    single = ((1,), "int64")
    outs = [(shape, dtype), whole, whole, whole, single, whole, single, single]
    values, firsts, inverse, counts, count, *_ = emit_sequential(builder, "unique", inputs[:1], outs, body)
    rooms = [(values, axis), (firsts, 0), (counts, 0)]
    values, firsts, counts = _found(builder, attributes, rooms, count, number, "unique")
    return relax.Tuple([values, firsts, inverse, counts])


def _suppress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Per class, select the best remaining box and suppress those whose overlap with it exceeds the threshold."""
    boxes, scores = inputs[:2]
    batch, number, _ = (_int64(extent) for extent in extents(boxes))
    classes, dtype = _int64(extents(scores)[1]), dtype_of(boxes)
    most = _most_boxes(builder, optional(inputs, 2), attributes, number)
    lowest = tensor_constant(np.full(1, -np.inf, dtype))
    overlap, least = optional(inputs, 3), optional(inputs, 4)
    limits = [
        tensor_constant(np.zeros(1, dtype)) if overlap is None else builder.emit(relax.op.reshape(overlap, [1])),
        lowest if least is None else builder.emit(relax.op.reshape(least, [1])),
    ]
    total = batch * classes * most
    zero, nothing, one = tirx.const(0.0, dtype), tirx.const(-1, "int64"), tirx.const(1, "int64")

    def corners(box: Any, index: Any) -> tuple[Any, Any, Any, Any]:
        a, b, c, d = (box[index * 4 + k] for k in range(4))
        if attributes.get("center_point_box", 0):
            half = tirx.const(0.5, dtype)
            return b - d * half, a - c * half, b + d * half, a + c * half
        return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)

    def body(
        box: Any, score: Any, limit: Any, floor: Any, chosen: Any, count: Any, alive: Any, best: Any, taken: Any
    ) -> None:
        count[0] = tirx.const(0, "int64")

        def find_best(base: Any) -> None:
            best[0] = nothing
            with T.serial(0, number) as i:
                rival = score[base + tirx.max(best[0], tirx.const(0, "int64"))]
                better = tirx.any(best[0] < tirx.const(0, "int64"), score[base + i] > rival)
                with T.If(tirx.all(alive[i] == one, better)), T.Then():
                    best[0] = i

        with T.serial(0, batch) as n, T.serial(0, classes) as c:
            base = (n * classes + c) * number
            with T.serial(0, number) as i:
                alive[i] = tirx.Select(score[base + i] > floor[0], one, tirx.const(0, "int64"))
            taken[0] = tirx.const(0, "int64")
            find_best(base)
            with T.While(tirx.all(best[0] >= tirx.const(0, "int64"), taken[0] < most)):
                for k, value in enumerate((n, c, best[0])):
                    chosen[count[0] * 3 + k] = value
                count[0] = count[0] + one
                taken[0] = taken[0] + one
                y0, x0, y1, x1 = corners(box, n * number + best[0])
                with T.serial(0, number) as i, T.If(alive[i] == one), T.Then():
                    v0, u0, v1, u1 = corners(box, n * number + i)
                    height = tirx.max(tirx.min(y1, v1) - tirx.max(y0, v0), zero)
                    width = tirx.max(tirx.min(x1, u1) - tirx.max(x0, u0), zero)
                    common = height * width
                    union = (y1 - y0) * (x1 - x0) + (v1 - v0) * (u1 - u0) - common
                    with T.If(tirx.any(common > limit[0] * union, i == best[0])), T.Then():
                        alive[i] = tirx.const(0, "int64")
                find_best(base)

    single = ((1,), "int64")
    outs = [((total, 3), "int64"), single, ((number,), "int64"), single, single]
    chosen, count, *_ = emit_sequential(builder, "non_max_suppression", [boxes, scores, *limits], outs, body)
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

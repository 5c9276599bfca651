"""Converters of operators whose output size depends on data: NonZero, Compress, Unique, NonMaxSuppression.

The output is allocated at its upper bound and zero beyond the valid count, an int64 scalar that is returned as a
further output (``graph.bounded_sizes``).

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
    dtype_of,
    known,
    optional,
    static_extents,
    tensor_constant,
    text,
)
from packager.frontends.onnx.ops.tir_loops import emit_sequential


def _clear(buffer: Any, size: int, dtype: str) -> None:
    with T.serial(0, size) as i:
        buffer[i] = tirx.const(0, dtype)


def _scalar(builder: Any, data: Any) -> Any:
    return builder.emit(relax.op.reshape(data, []))


def _is_set(value: Any, dtype: str) -> Any:
    """Tell whether a value is nonzero or NaN, for which LLVM's ordered comparison is false."""
    if dtype == "bool":
        return value
    different = value != tirx.const(0, dtype)
    return tirx.any(different, tirx.isnan(value)) if dtype.startswith(("float", "bfloat")) else different


def _non_zero(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    shape, dtype = static_extents(inputs[0], "the input of NonZero"), dtype_of(inputs[0])
    if not shape:
        raise ValueError("NonZero of a scalar")
    total = math.prod(shape)

    def body(x: Any, indices: Any, count: Any) -> None:
        count[0] = tirx.const(0, "int64")
        _clear(indices, len(shape) * total, "int64")
        with T.serial(0, total) as i, T.If(_is_set(x[i], dtype)), T.Then():
            stride = total
            for axis, extent in enumerate(shape):
                stride //= extent
                index = tirx.truncmod(tirx.truncdiv(i, stride), extent)
                indices[count[0] + axis * total] = index.astype("int64")
            count[0] = count[0] + tirx.const(1, "int64")

    outs = [((len(shape), total), "int64"), ((1,), "int64")]
    indices, count = emit_sequential(builder, "non_zero", [inputs[0]], outs, body)
    return relax.Tuple([indices, _scalar(builder, count)])


def _compress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    shape, dtype = static_extents(inputs[0], "the input of Compress"), dtype_of(inputs[0])
    flags = static_extents(inputs[1], "the condition of Compress")[0]
    axis = attributes.get("axis")
    if axis is None:
        shape, axis = [math.prod(shape)], 0
    axis %= len(shape)
    outer, extent, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    def body(x: Any, condition: Any, kept: Any, count: Any) -> None:
        count[0] = tirx.const(0, "int64")
        _clear(kept, outer * extent * inner, dtype)
        with T.serial(0, min(flags, extent)) as i, T.If(condition[i]), T.Then():
            with T.serial(0, outer) as o, T.serial(0, inner) as k:
                kept[(o * extent + count[0]) * inner + k] = x[(o * extent + i) * inner + k]
            count[0] = count[0] + tirx.const(1, "int64")

    kept, count = emit_sequential(builder, "compress", inputs[:2], [(shape, dtype), ((1,), "int64")], body)
    return relax.Tuple([kept, _scalar(builder, count)])


def _unique(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Rank the distinct slices by comparing all pairs."""
    shape, dtype = static_extents(inputs[0], "the input of Unique"), dtype_of(inputs[0])
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
        _clear(values, outer * number * inner, dtype)
        _clear(firsts, number, "int64")
        _clear(counts, number, "int64")

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
    sizes = [builder.emit(relax.op.reshape(count, [])) for _ in range(3)]
    return relax.Tuple([values, firsts, inverse, counts, *sizes])


def _suppress(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Per class, select the best remaining box and suppress those whose overlap with it exceeds the threshold."""
    boxes, scores = inputs[:2]
    batch, number, _ = static_extents(boxes, "the boxes of NonMaxSuppression")
    classes, dtype = static_extents(scores)[1], dtype_of(boxes)
    wanted = optional(inputs, 2)
    most = 0
    if wanted is not None:
        most = int(known(wanted, attributes, "max_output_boxes_per_class of NonMaxSuppression").item())
    most = max(0, min(most, number))
    lowest = tensor_constant(np.full(1, -np.inf, dtype))
    overlap, least = optional(inputs, 3), optional(inputs, 4)
    limits = [
        tensor_constant(np.zeros(1, dtype)) if overlap is None else builder.emit(relax.op.reshape(overlap, [1])),
        lowest if least is None else builder.emit(relax.op.reshape(least, [1])),
    ]
    total = max(1, batch * classes * most)
    zero, nothing, one = tirx.const(0.0, dtype), tirx.const(-1, "int64"), tirx.const(1, "int64")

    def corners(box: Any, index: Any) -> tuple[Any, Any, Any, Any]:
        a, b, c, d = (box[index * 4 + k] for k in range(4))
        if attributes.get("center_point_box", 0):
            half = tirx.const(0.5, dtype)
            return b - d * half, a - c * half, b + d * half, a + c * half
        return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)

    def body(box: Any, score: Any, limit: Any, floor: Any, chosen: Any, count: Any, alive: Any, best: Any) -> None:
        count[0] = tirx.const(0, "int64")
        _clear(chosen, total * 3, "int64")
        with T.serial(0, batch) as n, T.serial(0, classes) as c:
            base = (n * classes + c) * number
            with T.serial(0, number) as i:
                alive[i] = tirx.Select(score[base + i] > floor[0], one, tirx.const(0, "int64"))
            with T.serial(0, most) as _:
                best[0] = nothing
                with T.serial(0, number) as i:
                    rival = score[base + tirx.max(best[0], tirx.const(0, "int64"))]
                    better = tirx.any(best[0] < tirx.const(0, "int64"), score[base + i] > rival)
                    with T.If(tirx.all(alive[i] == one, better)), T.Then():
                        best[0] = i.astype("int64")
                with T.If(best[0] >= tirx.const(0, "int64")), T.Then():
                    for k, value in enumerate((n.astype("int64"), c.astype("int64"), best[0])):
                        chosen[count[0] * 3 + k] = value
                    count[0] = count[0] + one
                    with T.serial(0, number) as i:
                        y0, x0, y1, x1 = corners(box, n * number + best[0])
                        v0, u0, v1, u1 = corners(box, n * number + i)
                        height = tirx.max(tirx.min(y1, v1) - tirx.max(y0, v0), zero)
                        width = tirx.max(tirx.min(x1, u1) - tirx.max(x0, u0), zero)
                        common = height * width
                        union = (y1 - y0) * (x1 - x0) + (v1 - v0) * (u1 - u0) - common
                        with T.If(tirx.any(common > limit[0] * union, i.astype("int64") == best[0])), T.Then():
                            alive[i] = tirx.const(0, "int64")

    outs = [((total, 3), "int64"), ((1,), "int64"), ((number,), "int64"), ((1,), "int64")]
    chosen, count, _, _ = emit_sequential(builder, "non_max_suppression", [boxes, scores, *limits], outs, body)
    return relax.Tuple([chosen, _scalar(builder, count)])


def _fill_beyond(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """FillBeyond, which ``graph.bounded_sizes`` inserts: fill the slices from a count on with a constant."""
    data, count = inputs
    axis, dtype, shape = attributes["axis"], dtype_of(data), static_extents(data)
    positions = np.arange(shape[axis], dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    inside = builder.emit(relax.op.less(tensor_constant(positions), count))
    return relax.op.where(inside, data, relax.const(_fill_value(text(attributes, "fill", ""), dtype), dtype))


def _fill_value(fill: str, dtype: str) -> Any:
    if dtype == "bool":
        return fill in ("one", "highest")
    if fill in ("zero", "one"):
        return int(fill == "one")
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return info.min if fill == "lowest" else info.max
    return -np.inf if fill == "lowest" else np.inf


CONVERTERS: Mapping[str, Converter] = {
    "NonZero": _non_zero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _suppress,
    "FillBeyond": _fill_beyond,
}

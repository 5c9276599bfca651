"""Converters of TopK, TensorScatter, SpaceToDepth, and of uses of ConvTranspose that TVM lacks.

ONNX operators TopK (version 24), TensorScatter (24), SpaceToDepth (27), ConvTranspose with ``output_shape``
(22), MelWeightMatrix (17).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    dtype_of,
    extents,
    known,
    optional,
    static_extents,
    text,
)
from packager.frontends.onnx.ops.tir_loops import sequential

# Up to this extent, ranking by comparing all pairs is as fast as insertion, and runs on every device.
MAX_RANKED = 1024


def _top_k(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Rank by comparison, or insert each element into a sorted list; ties are in index order."""
    data = inputs[0]
    rank, dtype = data.ty.ndim, dtype_of(data)
    given = attributes["k"] if "k" in attributes else known(inputs[1], attributes, "k of TopK").item()
    axis, k, largest = attributes.get("axis", -1) % rank, int(given), bool(attributes.get("largest", 1))
    number = extents(data)[axis]
    if not isinstance(number, int) or not 0 < k <= number:
        raise ValueError(f"TopK of {k} elements of {number}")
    order = [*(i for i in range(rank) if i != axis), axis]
    back = [order.index(i) for i in range(rank)]
    moved = data if axis == rank - 1 else builder.emit(relax.op.permute_dims(data, order))

    def by_rank(x: Any) -> Any:
        """Compute the rank of each element, then invert the permutation."""
        other, mine = (te.reduce_axis((0, number), name=name) for name in ("other", "mine"))

        def rank_of(*i: Any) -> Any:
            left, right = x(*i[:-1], other), x(*i)
            first = tirx.any(left > right if largest else left < right, tirx.all(left == right, other < i[-1]))
            return te.sum(tirx.Select(first, tirx.const(1, "int64"), tirx.const(0, "int64")), axis=other)

        ranks = te.compute(x.shape, rank_of, name="ranks")
        shape = [*x.shape[:-1], tirx.const(k, "int64")]
        indices = te.compute(
            shape,
            lambda *i: te.sum(
                tirx.Select(
                    ranks(*i[:-1], mine) == i[-1].astype("int64"), mine.astype("int64"), tirx.const(0, "int64")
                ),
                axis=mine,
            ),
            name="places",
        )
        values = te.compute(shape, lambda *i: x(*i[:-1], tirx.min(indices(*i), number - 1)), name="values")
        return [values, indices]

    def better(a: Any, b: Any) -> Any:
        return a > b if largest else a < b

    def by_insertion(x: Any) -> Any:
        """Insert each element into a list of the best ones."""

        def insert_all(source: Any, values: Any, indices: Any) -> None:
            rows = math.prod(x.shape[:-1], start=tirx.const(1, "int64"))
            with T.serial(0, rows) as row, T.serial(0, number) as i:
                new, base = source[row * number + i], row * k
                full = i >= k
                with T.If(tirx.any(tirx.Not(full), better(new, values[base + (k - 1)]))), T.Then():
                    # From the end of the list to its start: shift worse elements to make room.
                    values[base + tirx.min(i, k - 1)] = new
                    indices[base + tirx.min(i, k - 1)] = i.astype("int64")
                    with T.serial(0, k - 1) as step:
                        at = base + (k - 2 - step)
                        within = k - 2 - step < tirx.min(i, k - 1)
                        with T.If(within), T.Then(), T.If(better(new, values[at])), T.Then():
                            values[at + 1] = values[at]
                            indices[at + 1] = indices[at]
                            values[at] = new
                            indices[at] = i.astype("int64")

        shape = (*x.shape[:-1], k)
        return sequential("top_k", [x], [(shape, dtype), (shape, "int64")], insert_all)

    compute = by_rank if number <= MAX_RANKED else by_insertion
    result = builder.emit(builder.call_te(compute, moved, primfunc_name_hint="top_k"))
    parts = [builder.emit(relax.TupleGetItem(result, part)) for part in range(2)]
    return relax.Tuple(
        [part if axis == rank - 1 else builder.emit(relax.op.permute_dims(part, back)) for part in parts]
    )


def _tensor_scatter(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Select each element from the update if it covers the position, else from the cache."""
    axis = attributes.get("axis", -2) % inputs[0].ty.ndim
    circular = text(attributes, "mode", "linear") == "circular"
    starts = optional(inputs, 2)

    def compute(cache: Any, update: Any, *given: Any) -> Any:
        size = cache.shape[axis].astype("int64")

        def element(*i: Any) -> Any:
            start = given[0][i[0]].astype("int64") if given else tirx.const(0, "int64")
            at = i[axis].astype("int64") - start
            if circular:
                at = tirx.floormod(at, size)
            inside = tirx.all(at >= tirx.const(0, "int64"), at < update.shape[axis].astype("int64"))
            source = [*i[:axis], at, *i[axis + 1 :]]
            return tirx.if_then_else(inside, update(*source), cache(*i))

        return te.compute(cache.shape, element, name="tensor_scatter")

    operands = [*inputs[:2], *([] if starts is None else [starts])]
    return builder.call_te(compute, *operands, primfunc_name_hint="tensor_scatter")


def _space_to_depth(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    if text(attributes, "mode", "DCR") != "CRD":
        return convert("SpaceToDepth", list(inputs), attributes)
    batch, channels, height, width = extents(inputs[0])
    size = attributes["blocksize"]
    split = builder.emit(relax.op.reshape(inputs[0], [batch, channels, height // size, size, width // size, size]))
    moved = builder.emit(relax.op.permute_dims(split, [0, 1, 3, 5, 2, 4]))
    return relax.op.reshape(moved, [batch, channels * size * size, height // size, width // size])


def _conv_transpose(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Convert ``output_shape`` to padding; an output larger than without padding is extended by zeros (or bias)."""
    if "output_shape" not in attributes:
        return convert("ConvTranspose", list(inputs), attributes)
    shape, kernel = static_extents(inputs[0], "the input of ConvTranspose", 2), static_extents(inputs[1], first=2)
    rank, wanted = len(shape), list(attributes["output_shape"])[-len(shape) :]
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    extra = list(attributes.get("output_padding", [0] * rank))
    before, after = [], []
    for i, extent in enumerate(shape):
        total = strides[i] * (extent - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - wanted[i]
        extra[i] += max(0, -total)
        half = max(0, total) // 2
        upper = text(attributes, "auto_pad", "NOTSET") == "SAME_UPPER"
        before.append(half if upper else max(0, total) - half)
        after.append(max(0, total) - before[-1])
    plain = {name: value for name, value in attributes.items() if name not in ("output_shape", "auto_pad")}
    plain |= {"pads": (*before, *after), "output_padding": tuple(extra)}
    return convert("ConvTranspose", list(inputs), plain)


def _mel_weights(_builder: Any, _inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    """Raise ValueError: ``graph.fold_constants`` evaluates the operator if its inputs are constant."""
    raise ValueError("an input of MelWeightMatrix is not constant: freeze it with --freeze")


CONVERTERS: Mapping[str, Converter] = {
    "TopK": _top_k,
    "TensorScatter": _tensor_scatter,
    "SpaceToDepth": _space_to_depth,
    "ConvTranspose": _conv_transpose,
    "MelWeightMatrix": _mel_weights,
}

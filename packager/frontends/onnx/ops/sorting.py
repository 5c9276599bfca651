"""Converter of TopK (ONNX version 24). Ties are in index order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, extents
from packager.frontends.onnx.ops.shapes.arithmetic import known_integers
from packager.lower import sorting


def _int64(value: Any) -> Any:
    """Return an extent as an expression of type int64."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _top_k(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, custom = inputs[0], attributes["tvm_custom"]
    rank = data.ty.ndim
    axis = attributes.get("axis", -1) % rank
    number = extents(data)[axis]
    k = attributes["k"] if "k" in attributes else known_integers(inputs[1], attributes, "k of TopK").item()
    custom["relations"].require(k, "<=", number, custom["name"] or "TopK")
    if isinstance(k, int) and isinstance(number, int) and k < 1:
        raise ValueError(f"TopK of {k} elements of {number}")
    order = [*(i for i in range(rank) if i != axis), axis]
    back = [order.index(i) for i in range(rank)]
    moved = data if axis == rank - 1 else builder.emit(relax.op.permute_dims(data, order))
    outer = [_int64(extent) for extent in extents(moved)[:-1]]
    rows = math.prod(outer, start=tirx.IntImm("int64", 1))
    flat = builder.emit(relax.op.reshape(moved, [rows, _int64(number)]))
    most = custom["extents"].maximum(number)
    both = builder.emit(sorting.top_k(flat, _int64(k), bool(attributes.get("largest", 1)), most))
    results = []
    for field in range(2):
        part = builder.emit(relax.TupleGetItem(both, field))
        part = builder.emit(relax.op.reshape(part, [*outer, _int64(k)]))
        results.append(part if axis == rank - 1 else builder.emit(relax.op.permute_dims(part, back)))
    return relax.Tuple(results)


CONVERTERS: Mapping[str, Converter] = {"TopK": _top_k}

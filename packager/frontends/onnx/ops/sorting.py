"""Converter of TopK (ONNX version 24). Ties are in index order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, extents
from packager.frontends.onnx.ops.shapes.arithmetic import known_integers
from packager.frontends.ordering import emit_top_k


def _top_k(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, custom = inputs[0], attributes["tvm_custom"]
    axis = attributes.get("axis", -1) % data.ty.ndim
    number = extents(data)[axis]
    k = attributes["k"] if "k" in attributes else known_integers(inputs[1], attributes, "k of TopK").item()
    custom["relations"].require(k, "<=", number, custom["name"] or "TopK")
    if isinstance(k, int) and isinstance(number, int) and k < 1:
        raise ValueError(f"TopK of {k} elements of {number}")
    most = custom["extents"].maximum(number)
    return relax.Tuple(emit_top_k(builder.emit, data, k, axis, most, largest=bool(attributes.get("largest", 1))))


CONVERTERS: Mapping[str, Converter] = {"TopK": _top_k}

"""Converters of TensorScatter, SpaceToDepth, and of uses of ConvTranspose that TVM lacks.

ONNX operators TensorScatter (version 24), SpaceToDepth (27), ConvTranspose with ``output_shape`` (22),
MelWeightMatrix (17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    extents,
    optional,
    static_extents,
    text,
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
    "TensorScatter": _tensor_scatter,
    "SpaceToDepth": _space_to_depth,
    "ConvTranspose": _conv_transpose,
    "MelWeightMatrix": _mel_weights,
}

"""Converters of TensorScatter, SpaceToDepth, and of uses of RoiAlign and ConvTranspose that TVM lacks.

ONNX operators TensorScatter (version 24), SpaceToDepth (27), RoiAlign (22), ConvTranspose with
``output_shape`` (22), MelWeightMatrix (17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    dtype_of,
    extents,
    opset,
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


def _roi_align(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """RoiAlign: the mean of all samples, or, as in onnx's reference, the maximum over their weighted neighbors.

    TVM's makes small regions larger where the standard does so for ``output_half_pixel`` only.
    """
    mean = text(attributes, "mode", "avg") != "max"
    data, rois, batches = inputs
    channels, height, width = static_extents(data, "the image of RoiAlign", 1)
    rows, columns = attributes.get("output_height", 1), attributes.get("output_width", 1)
    ratio, scale = attributes.get("sampling_ratio", 0), attributes.get("spatial_scale", 1.0)
    dtype = dtype_of(data)
    if ratio <= 0:
        raise ValueError("RoiAlign with an adaptive number of samples (sampling_ratio=0)")
    old = (
        opset(attributes) < 16
        or text(attributes, "coordinate_transformation_mode", "half_pixel") == "output_half_pixel"
    )

    def compute(x: Any, roi: Any, batch: Any) -> Any:
        sy, sx = (te.reduce_axis((0, ratio), name=name) for name in ("sy", "sx"))
        corner = te.reduce_axis((0, 4), name="corner")

        def number(value: float) -> Any:
            return tirx.const(value, dtype)

        def sample_point(
            r: Any, bin_index: Any, sample: Any, first: int, bins: int, extent: int
        ) -> tuple[Any, Any, Any, Any]:
            offset = 0.0 if old else 0.5
            start = roi(r, first) * number(scale) - number(offset)
            length = roi(r, first + 2) * number(scale) - number(offset) - start
            if old:
                length = tirx.max(length, number(1.0))
            step = length / number(float(bins))
            at = start + bin_index.astype(dtype) * step
            at = at + (sample.astype(dtype) + number(0.5)) * step / number(float(ratio))
            inside = tirx.all(at >= number(-1.0), at <= number(float(extent)))
            at = tirx.min(tirx.Select(at > number(0.0), at, number(0.0)), number(extent - 1.0))
            low = tirx.floor(at)
            return inside, low.astype("int32"), at - low, tirx.const(extent - 1, "int32")

        def element(r: Any, c: Any, oy: Any, ox: Any) -> Any:
            in_y, y, fy, last_y = sample_point(r, oy, sy, 1, rows, height)
            in_x, z, fx, last_x = sample_point(r, ox, sx, 0, columns, width)
            down, right = corner // 2, corner % 2
            value = x(batch(r), c, tirx.min(y + down, last_y), tirx.min(z + right, last_x))
            weight = tirx.Select(down == 1, fy, number(1.0) - fy) * tirx.Select(right == 1, fx, number(1.0) - fx)
            part = tirx.Select(tirx.all(in_y, in_x), weight * value, number(0.0))
            return (te.sum if mean else te.max)(part, axis=[sy, sx, corner])

        result = te.compute((roi.shape[0], channels, rows, columns), element, name="samples")
        if not mean:
            return result
        return te.compute(result.shape, lambda *i: result(*i) / number(float(ratio * ratio)), name="roi_align")

    return builder.call_te(compute, data, rois, batches, primfunc_name_hint="roi_align")


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
    "RoiAlign": _roi_align,
    "ConvTranspose": _conv_transpose,
    "MelWeightMatrix": _mel_weights,
}

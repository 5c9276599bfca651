"""Converters of activations that TVM's importer supports in float32 only, or in their newer version only.

ONNX operators Elu (version 22), Selu (version 22) and ThresholdedRelu (version 22), PRelu (1 to 16).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, opset


def _exponential(builder: Any, data: Any, alpha: float) -> Any:
    """Return alpha * (exp(min(x, 0)) - 1) + max(x, 0)."""
    dtype = dtype_of(data)
    zero = relax.const(0, dtype)
    below = builder.emit(relax.op.exp(builder.emit(relax.op.minimum(data, zero))))
    below = builder.emit(relax.op.subtract(below, relax.const(1, dtype)))
    scaled = builder.emit(relax.op.multiply(below, relax.const(alpha, dtype)))
    return builder.emit(relax.op.add(scaled, builder.emit(relax.op.maximum(data, zero))))


def _elu(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Elu-22."""
    if dtype_of(inputs[0]) == "float32":
        return convert("Elu", list(inputs), attributes)
    return _exponential(builder, inputs[0], attributes.get("alpha", 1.0))


def _selu(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Selu-22."""
    if dtype_of(inputs[0]) == "float32":
        return convert("Selu", list(inputs), attributes)
    inner = _exponential(builder, inputs[0], attributes.get("alpha", 1.6732632423543772))
    return relax.op.multiply(inner, relax.const(attributes.get("gamma", 1.0507009873554805), dtype_of(inputs[0])))


def _thresholded_relu(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """ThresholdedRelu-22: x above alpha, else 0."""
    (data,) = inputs
    dtype = dtype_of(data)
    above = builder.emit(relax.op.greater(data, relax.const(attributes.get("alpha", 1.0), dtype)))
    return relax.op.where(above, data, relax.const(0, dtype))


def _prelu(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """PRelu; before version 7 a vector of slopes applies to the channels (axis 1)."""
    data, slope = inputs
    if opset(attributes) < 7 and slope.ty.ndim == 1 and data.ty.ndim > 2 and extents(slope) != [1]:
        slope = builder.emit(relax.op.reshape(slope, [-1] + [1] * (data.ty.ndim - 2)))
    # Not TVM's operator, which wants to know the extent of the slopes' axis.
    below = builder.emit(relax.op.less(data, relax.const(0, dtype_of(data))))
    return relax.op.where(below, builder.emit(relax.op.multiply(slope, data)), data)


CONVERTERS: Mapping[str, Converter] = {
    "Elu": _elu,
    "Selu": _selu,
    "ThresholdedRelu": _thresholded_relu,
    "PRelu": _prelu,
}

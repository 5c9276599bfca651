"""Converters of QuantizeLinear and DequantizeLinear with 8-bit floats, which TVM's importer lacks.

https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html: a float8 is ``saturate(x / scale)``, rounded by the cast; the
zero point is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import TensorProto
from tvm import relax

# Converts a standard operator, given its name, inputs and attributes.
Convert = Callable[[str, list[Any], dict[str, Any]], Any]
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
_OUTPUTS = {TensorProto.FLOAT8E4M3FN: "float8_e4m3fn", TensorProto.FLOAT8E5M2: "float8_e5m2"}


def quantize_linear(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Return a node's result as Relax. Raises ValueError for uses that are not supported."""
    data, scale, zero = [*inputs, None][:3]
    stored = _OUTPUTS.get(attributes.get("output_dtype", 0)) if zero is None else str(zero.ty.dtype)
    if stored not in LARGEST:
        return convert("QuantizeLinear", list(inputs), attributes)
    if attributes.get("saturate", 1) != 1 or attributes.get("block_size", 0) != 0:
        raise ValueError("QuantizeLinear of float8 with saturate=0 or in blocks is not supported")
    divided = builder.emit(relax.op.divide(data, along(builder, scale, data, attributes)))
    clipped = builder.emit(relax.op.clip(divided, -LARGEST[stored], LARGEST[stored]))
    return relax.op.astype(clipped, stored)


def dequantize_linear(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Return a node's result as Relax. Raises ValueError for uses that are not supported."""
    data, scale = inputs[:2]
    if str(data.ty.dtype) not in LARGEST:
        return convert("DequantizeLinear", list(inputs), attributes)
    if attributes.get("block_size", 0) != 0:
        raise ValueError("DequantizeLinear of float8 in blocks is not supported")
    wide = builder.emit(relax.op.astype(data, str(scale.ty.dtype)))
    return relax.op.multiply(wide, along(builder, scale, data, attributes))


def along(builder: Any, scale: Any, data: Any, attributes: dict[str, Any]) -> Any:
    """Reshape a per-tensor or per-axis scale so that it broadcasts to ``data``."""
    rank, axis = data.ty.ndim, attributes.get("axis", 1)
    if scale.ty.ndim == 0 or rank <= 1:
        return scale
    shape = [-1 if index == axis % rank else 1 for index in range(rank)]
    return builder.emit(relax.op.reshape(scale, shape))

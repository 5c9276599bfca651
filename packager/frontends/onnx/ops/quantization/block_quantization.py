"""Blocked quantization: one scale per block of elements along an axis.

ONNX operators QuantizeLinear and DequantizeLinear (version 21 on) with ``block_size``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import get_type

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, optional
from packager.frontends.onnx.ops.quantization.float8_quantization import LARGEST, dequantize_linear, quantize_linear

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def spread(builder: Any, small: Any, data: Any, attributes: Mapping[str, Any]) -> Any:
    """Repeat scales or zero points to the shape of ``data``."""
    axis = attributes.get("axis", 1) % data.ty.ndim
    block, extent = attributes["block_size"], extents(data)[axis]
    repeated = builder.emit(relax.op.repeat(small, block, axis))
    if extents(repeated)[axis] != extent:  # the last block is not full
        repeated = builder.emit(relax.op.strided_slice(repeated, [axis], [0], [extent]))
    return repeated


def _quantize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """QuantizeLinear-21: saturate(round(x / scale) + zero point), rounding half to even."""
    data, scale, zero = inputs[0], inputs[1], optional(inputs, 2)
    output = attributes.get("output_dtype", 0)
    stored = dtype_of(zero) if zero is not None else get_type(output) if output else "uint8"
    if not attributes.get("block_size", 0) or stored in LARGEST:
        return quantize_linear(builder, inputs, attributes, convert)
    if stored not in RANGES:
        raise ValueError(f"QuantizeLinear in blocks to {stored} is not supported")
    if attributes.get("precision", 0):
        raise ValueError("QuantizeLinear with the attribute precision is not supported")
    emit, dtype = builder.emit, dtype_of(data)
    divided = emit(relax.op.round(emit(relax.op.divide(data, spread(builder, scale, data, attributes)))))
    if zero is not None:
        wide = emit(relax.op.astype(spread(builder, zero, data, attributes), dtype))
        divided = emit(relax.op.add(divided, wide))
    low, high = RANGES[stored]
    return relax.op.astype(emit(relax.op.clip(divided, low, high)), stored)


def _dequantize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """DequantizeLinear-21: (x - zero point) * scale."""
    data, scale, zero = inputs[0], inputs[1], optional(inputs, 2)
    if not attributes.get("block_size", 0) or dtype_of(data) in LARGEST:
        return dequantize_linear(builder, inputs, attributes, convert)
    if dtype_of(data) not in RANGES:
        raise ValueError(f"DequantizeLinear in blocks of {dtype_of(data)} is not supported")
    emit, dtype = builder.emit, dtype_of(scale)
    wide = emit(relax.op.astype(data, "int32"))
    if zero is not None:
        origin = emit(relax.op.astype(spread(builder, zero, data, attributes), "int32"))
        wide = emit(relax.op.subtract(wide, origin))
    return relax.op.multiply(emit(relax.op.astype(wide, dtype)), spread(builder, scale, data, attributes))


BLOCKED: Mapping[str, Converter] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}

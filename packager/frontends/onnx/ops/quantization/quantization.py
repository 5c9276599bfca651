"""Converters of quantization that TVM's importer lacks: blocks, 8-bit floats, and operators with quantized operands.

QuantizeLinear and DequantizeLinear (version 21) with ``block_size`` have one scale for each block along an axis.
``QLinearConv`` and ``QLinearMatMul`` become dequantize, conv or matmul, quantize, exactly as in QDQ models, and are
rewritten to integer arithmetic with those (``transforms.quantize``). ``ConvInteger`` becomes an int32 convolution after
subtracting the zero points, as TVM imports ``MatMulInteger``. Specifications:
https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, onnx__QLinearConv.html, onnx__QLinearMatMul.html,
onnx__ConvInteger.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import get_type

from packager.frontends.onnx.ops.nn.convolution import convolve
from packager.frontends.onnx.ops.operands import Convert, Converter, as_type, dtype_of, extents, optional

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def spread(builder: Any, small: Any, data: Any, attributes: Mapping[str, Any]) -> Any:
    """Repeat or reshape a blocked, per-axis or per-tensor scale or zero point so that it broadcasts to ``data``."""
    rank = data.ty.ndim
    axis, block = attributes.get("axis", 1) % max(rank, 1), attributes.get("block_size", 0)
    if not block or not rank:
        shape = [-1 if index == axis else 1 for index in range(rank)]
        return small if small.ty.ndim == 0 or rank <= 1 else builder.emit(relax.op.reshape(small, shape))
    extent = extents(data)[axis]
    repeated = builder.emit(relax.op.repeat(small, block, axis))
    if extents(repeated)[axis] != extent:  # the last block is not full
        repeated = builder.emit(relax.op.strided_slice(repeated, [axis], [0], [extent]))
    return repeated


def _quantize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """QuantizeLinear-21: saturate(round(x / scale) + zero point), rounding half to even.

    A float8 is rounded by the cast; its zero point is 0.
    """
    data, scale, zero = inputs[0], inputs[1], optional(inputs, 2)
    output, block = attributes.get("output_dtype", 0), attributes.get("block_size", 0)
    stored = dtype_of(zero) if zero is not None else get_type(output) if output else "uint8"
    # float16 does not reach the numbers of uint16, and TVM's importer takes no bfloat16.
    if (dtype_of(data), stored) == ("float16", "uint16") or (dtype_of(data) == "bfloat16" and stored not in LARGEST):
        data, scale = (as_type(builder, operand, "float32") for operand in (data, scale))
    if stored not in LARGEST and not block:
        return convert("QuantizeLinear", [data, scale, *inputs[2:]], attributes)
    if stored in LARGEST and (attributes.get("saturate", 1) != 1 or block):
        raise ValueError("QuantizeLinear of float8 with saturate=0 or in blocks is not supported")
    if stored not in {**LARGEST, **RANGES}:
        raise ValueError(f"QuantizeLinear in blocks to {stored} is not supported")
    if stored in RANGES and attributes.get("precision", 0):
        raise ValueError("QuantizeLinear with the attribute precision is not supported")
    emit, dtype = builder.emit, dtype_of(data)
    divided = emit(relax.op.divide(data, spread(builder, scale, data, attributes)))
    if stored in LARGEST:
        clipped = emit(relax.op.clip(divided, -LARGEST[stored], LARGEST[stored]))
        return relax.op.astype(clipped, stored)
    divided = emit(relax.op.round(divided))
    if zero is not None:
        wide = emit(relax.op.astype(spread(builder, zero, data, attributes), dtype))
        divided = emit(relax.op.add(divided, wide))
    return relax.op.astype(emit(relax.op.clip(divided, *RANGES[stored])), stored)


def _dequantize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """DequantizeLinear-21: (x - zero point) * scale. The zero point of a float8 is 0."""
    data, scale, zero = inputs[0], inputs[1], optional(inputs, 2)
    stored, block = dtype_of(data), attributes.get("block_size", 0)
    if stored not in LARGEST and not block:
        if dtype_of(scale) != "bfloat16":
            return convert("DequantizeLinear", list(inputs), attributes)
        operands = [data, as_type(builder, scale, "float32"), *inputs[2:]]
        return relax.op.astype(builder.emit(convert("DequantizeLinear", operands, attributes)), dtype_of(scale))
    if block and stored not in RANGES:
        raise ValueError(f"DequantizeLinear in blocks of {stored} is not supported")
    emit, wide = builder.emit, data
    if stored in RANGES:
        wide = emit(relax.op.astype(data, "int32"))
        if zero is not None:
            origin = emit(relax.op.astype(spread(builder, zero, data, attributes), "int32"))
            wide = emit(relax.op.subtract(wide, origin))
    return relax.op.multiply(emit(relax.op.astype(wide, dtype_of(scale))), spread(builder, scale, data, attributes))


def _dequantized(builder: Any, data: Any, scale: Any, zero: Any, axis: int) -> Any:
    scale = as_type(builder, scale, "float32")
    rank = data.ty.ndim
    along = axis % rank if rank else 0
    return builder.emit(relax.op.dequantize(data, scale, zero, axis=along, out_dtype="float32"))


def _quantized(builder: Any, data: Any, scale: Any, zero: Any, axis: int) -> Any:
    stored = str(zero.ty.dtype)
    return relax.op.quantize(data, as_type(builder, scale, "float32"), zero, axis=axis % data.ty.ndim, out_dtype=stored)


def _qlinear_conv(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    data, weight = _dequantized(builder, x, x_scale, x_zero, 0), _dequantized(builder, w, w_scale, w_zero, 0)
    added = None
    if bias and bias[0] is not None:
        scale = builder.emit(relax.op.multiply(x_scale, w_scale))
        added = _dequantized(builder, bias[0], scale, relax.const(0, "int32"), 0)
    result = builder.emit(convolve(builder, [data, weight, added], attributes, convert))
    return _quantized(builder, result, y_scale, y_zero, 1)


def _qlinear_matmul(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], convert: Convert) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    operands = [_dequantized(builder, a, a_scale, a_zero, -2), _dequantized(builder, b, b_scale, b_zero, -1)]
    result = builder.emit(convert("MatMul", operands, {}))
    return _quantized(builder, result, y_scale, y_zero, -2)


def _conv_integer(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    x, w, x_zero, w_zero = [*inputs, None, None][:4]

    def without(zero: Any, data: Any) -> Any:
        whole = builder.emit(relax.op.astype(data, "int32"))
        if zero is None:
            return whole
        origin = builder.emit(relax.op.astype(zero, "int32"))
        if zero.ty.ndim == 1 and zero is w_zero:
            origin = builder.emit(relax.op.reshape(origin, [-1] + [1] * (data.ty.ndim - 1)))
        return builder.emit(relax.op.subtract(whole, origin))

    return convolve(builder, [without(x_zero, x), without(w_zero, w), None], attributes, convert)


CONVERTERS: Mapping[str, Converter] = {
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}

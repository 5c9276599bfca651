"""Converters of ONNX's quantized operators that TVM's importer lacks.

``QLinearConv`` and ``QLinearMatMul`` become dequantize, conv or matmul, quantize, exactly as in QDQ models, and are
rewritten to integer arithmetic with those (``transforms.quantize``). ``ConvInteger`` becomes an int32 convolution after
subtracting the zero points, as TVM imports ``MatMulInteger``. Specifications:
https://onnx.ai/onnx/operators/onnx__QLinearConv.html, onnx__QLinearMatMul.html, onnx__ConvInteger.html.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter
from packager.frontends.onnx.ops.quantization.float8_quantization import dequantize_linear, quantize_linear


def _dequantized(builder: Any, data: Any, scale: Any, zero: Any, axis: int) -> Any:
    scale = _single(builder, scale)
    rank = data.ty.ndim
    along = axis % rank if rank else 0
    return builder.emit(relax.op.dequantize(data, scale, zero, axis=along, out_dtype="float32"))


def _quantized(builder: Any, data: Any, scale: Any, zero: Any, axis: int) -> Any:
    stored = str(zero.ty.dtype)
    return relax.op.quantize(data, _single(builder, scale), zero, axis=axis % data.ty.ndim, out_dtype=stored)


def _single(builder: Any, scale: Any) -> Any:
    """Cast a scale to float32; newer models store float16."""
    return scale if str(scale.ty.dtype) == "float32" else builder.emit(relax.op.astype(scale, "float32"))


def _qlinear_conv(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    data, weight = _dequantized(builder, x, x_scale, x_zero, 0), _dequantized(builder, w, w_scale, w_zero, 0)
    added = None
    if bias and bias[0] is not None:
        scale = builder.emit(relax.op.multiply(x_scale, w_scale))
        added = _dequantized(builder, bias[0], scale, relax.const(0, "int32"), 0)
    result = builder.emit(convert("Conv", [data, weight, added], attributes))
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

    return convert("Conv", [without(x_zero, x), without(w_zero, w), None], attributes)


QUANTIZED: Mapping[str, Converter] = {
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
}

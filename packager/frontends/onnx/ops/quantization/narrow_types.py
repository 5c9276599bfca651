"""Converters of ``NarrowDecode``, ``NarrowEncode`` and ``NarrowScale``, which ``graph.narrow_types`` inserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from packager.frontends.arithmetic import elementwise
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, text
from packager.frontends.onnx.ops.quantization.quantization import spread
from packager.graph.narrow_types import EXPONENTS, FLOATS, INTEGERS, NATIVE, decode, encode


def _narrow_decode(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype = text(attributes, "type", "")

    def value(element: Any) -> Any:
        return decode(dtype, tirx.reinterpret("uint8", element) if dtype == NATIVE else element)

    return elementwise(builder, inputs[:1], value, f"from_{dtype}")


def _narrow_encode(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype, rounding = text(attributes, "type", ""), text(attributes, "round_mode", "up")
    if dtype not in (EXPONENTS, *FLOATS, *INTEGERS) or rounding not in ("up", "down", "nearest"):
        raise ValueError(f"conversion to {dtype}, rounding {rounding}")

    source = dtype_of(inputs[0])

    def element(value: Any) -> Any:
        byte = encode(dtype, value, source, bool(attributes["saturate"]), rounding)
        return tirx.reinterpret(dtype, byte) if dtype == NATIVE else byte

    return elementwise(builder, inputs[:1], element, f"to_{dtype}")


def _narrow_scale(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Multiply, divide or add data with a per-tensor, per-axis or blocked operand.

    A product has the type of the scale, other results that of the data; they are rounded once.
    """
    data, scale = inputs
    wide = "float64" if "float64" in (dtype_of(data), dtype_of(scale)) else "float32"
    kind = text(attributes, "kind", "")
    result = dtype_of(scale) if kind == "multiply" else dtype_of(data)
    operand = spread(builder, scale, data, attributes)
    both = [x if dtype_of(x) == wide else builder.emit(relax.op.astype(x, wide)) for x in (data, operand)]
    made = getattr(relax.op, kind)(*both)
    return made if result == wide else relax.op.astype(builder.emit(made), result)


CONVERTERS: Mapping[str, Converter] = {
    "NarrowDecode": _narrow_decode,
    "NarrowEncode": _narrow_encode,
    "NarrowScale": _narrow_scale,
}

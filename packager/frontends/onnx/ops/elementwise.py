"""Converters of operators on elements for the element types and ranks that TVM's importer lacks.

ONNX operators Max and Min (version 13), Cast (version 25), Sign (13), Shrink (9), Equal (19), Celu (28), LRN (13),
IsNaN (20), trigonometric and hyperbolic functions (22).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.bundle.dtypes import HALVES, wide_type
from packager.frontends.arithmetic import elementwise
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of

QUESTIONS = ("IsNaN",)  # their results are truth values
# LLVM has no half-precision versions of these.
SINGLE_PRECISION = (*QUESTIONS, "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")


def _in_float32(operator: str) -> Converter:
    """Return a converter that computes half precision in float32, rounded once."""

    def converted(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
        dtype = dtype_of(inputs[0])
        if dtype not in HALVES:
            return convert(operator, list(inputs), attributes)
        wide = [builder.emit(relax.op.astype(operand, "float32")) for operand in inputs]
        result = builder.emit(convert(operator, wide, attributes))
        return result if operator in QUESTIONS else relax.op.astype(result, dtype)

    return converted


def _pairwise(operator: str) -> Converter:
    """Return a converter of Max-13 or Min-13 to operators of two operands, which broadcast; TVM's stacks them."""
    join = {"Max": relax.op.maximum, "Min": relax.op.minimum}[operator]

    def converted(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
        if all(isinstance(operand, GenericConst) for operand in inputs) or len(inputs) < 2:
            return convert(operator, list(inputs), attributes)
        return functools.reduce(lambda one, two: builder.normalize(join(one, two)), inputs)

    return converted


def _sign(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Sign-13; TVM's compares unsigned integers with -1."""
    dtype = dtype_of(inputs[0])
    if dtype.startswith("uint"):
        return relax.op.minimum(inputs[0], relax.const(1, dtype))
    return convert("Sign", list(inputs), attributes)


def _shrink(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Shrink-9; for integers threshold and bias stay fractions, and the result is truncated."""
    dtype = dtype_of(inputs[0])
    if dtype.startswith(("float", "bfloat")):
        return convert("Shrink", list(inputs), attributes)
    wide = builder.emit(relax.op.astype(inputs[0], "float64"))
    return relax.op.astype(builder.emit(convert("Shrink", [wide], attributes)), dtype)


def _equal(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Equal-19; LLVM has no comparison of vectors of truth values as TVM writes it."""
    if all(str(getattr(operand.ty, "dtype", "")) == "bool" for operand in inputs):
        return relax.op.logical_not(builder.emit(relax.op.logical_xor(*inputs)))
    return convert("Equal", list(inputs), attributes)


def _celu(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Celu-28: max(0, x) + min(0, alpha * (exp(x / alpha) - 1)), of any rank."""
    emit = builder.emit
    (data,) = inputs
    given = dtype_of(data)
    dtype = wide_type(given)
    data = emit(relax.op.astype(data, dtype)) if dtype != given else data
    zero, alpha = relax.const(0, dtype), relax.const(attributes.get("alpha", 1.0), dtype)
    power = emit(relax.op.exp(emit(relax.op.divide(emit(relax.op.minimum(data, zero)), alpha))))
    below = emit(relax.op.multiply(alpha, emit(relax.op.subtract(power, relax.const(1, dtype)))))
    result = relax.op.add(emit(relax.op.maximum(data, zero)), emit(relax.op.minimum(below, zero)))
    return relax.op.astype(emit(result), given) if dtype != given else result


def _cast(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Cast-25; bfloat16 is rounded here, since a fused kernel of TVM keeps such values in float32."""
    data = inputs[0]
    source = str(getattr(getattr(data, "ty", None), "dtype", ""))  # "" of a shape that is known at build time
    if attributes.get("to") != TensorProto.BFLOAT16 or source in ("", "bfloat16"):
        return convert("Cast", list(inputs), attributes)
    if source != "float32":
        data = builder.emit(relax.op.astype(data, "float32"))

    def rounded(value: Any) -> Any:
        bits = tirx.reinterpret("uint32", value)
        odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
        nearest = (bits + tirx.const(0x7FFF, "uint32") + odd) & tirx.const(0xFFFF0000, "uint32")
        return tirx.Select(value == value, tirx.reinterpret("float32", nearest), value)  # noqa: PLR0124  (NaN)

    return relax.op.astype(builder.emit(elementwise(builder, [data], rounded, "round_to_bfloat16")), "bfloat16")


CONVERTERS: Mapping[str, Converter] = {
    **{name: _in_float32(name) for name in SINGLE_PRECISION},
    **{name: _pairwise(name) for name in ("Max", "Min")},
    "Sign": _sign,
    "Shrink": _shrink,
    "Equal": _equal,
    "Cast": _cast,
    "Celu": _celu,
    "LRN": _in_float32("LRN"),
}

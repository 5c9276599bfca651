"""Converters of shifts, bit casts, remainders and powers that TVM's importer lacks or computes wrongly.

ONNX operators BitShift (version 28), BitCast (26), Mod (28), Div (14), Pow (15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import onnx
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.onnx.onnx_frontend import compute_broadcast_shape
from tvm.runtime import DataType

from packager.frontends.onnx.ops.operands import Convert, Converter, constant, dtype_of, text


def elementwise(builder: Any, inputs: Sequence[Any], function: Any, name: str) -> Any:
    """Apply ``function`` elementwise, with broadcasting."""

    def compute(*tensors: Any) -> Any:
        shape = reduce(compute_broadcast_shape, (tensor.shape for tensor in tensors))
        wide = tensors if len(tensors) == 1 else [topi.broadcast_to(tensor, shape) for tensor in tensors]
        return te.compute(shape, lambda *i: function(*(tensor(*i) for tensor in wide)), name=name)

    return builder.call_te(compute, *inputs, primfunc_name_hint=name)


def _bit_shift(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype = dtype_of(inputs[0])
    bits, left, signed = DataType(dtype).bits, text(attributes, "direction", "") == "LEFT", dtype.startswith("int")

    def shift(x: Any, count: Any) -> Any:
        # A shift by a count outside [0, bits) is undefined in C: return 0, or -1 for a negative number shifted right.
        wide = count.astype("int64")
        inside = tirx.all(wide >= tirx.const(0, "int64"), wide < tirx.const(bits, "int64"))
        safe = tirx.Select(inside, count, tirx.const(bits - 1, dtype))
        zero = tirx.const(0, dtype)
        if not left:
            rest = tirx.Select(x < zero, tirx.const(-1, dtype), zero) if signed else zero
            return tirx.Select(inside, x >> safe, rest)
        unsigned = f"uint{bits}"
        moved = (x.astype(unsigned) << safe.astype(unsigned)).astype(dtype) if signed else x << safe
        return tirx.Select(inside, moved, zero)

    return elementwise(builder, inputs, shift, "bit_shift")


def _bit_cast(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    target = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]).name
    source = dtype_of(inputs[0])
    if DataType(source).bits != DataType(target).bits:
        raise ValueError(f"BitCast of {source} to {target}: these have different sizes")
    if source == target:
        return inputs[0]
    if "bool" in (source, target):
        if {source, target} - {"bool"} & {"float8_e4m3fn", "float8_e5m2"} or target == "bool":
            raise ValueError(f"BitCast of {source} to {target}")
        return relax.op.astype(inputs[0], target)  # bool is stored as 0 or 1
    return elementwise(builder, inputs, lambda x: tirx.reinterpret(target, x), "bit_cast")


def _mod(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    tensors = all(isinstance(x.ty, relax.TensorType) for x in inputs)  # no extents
    if attributes.get("fmod", 0) or not tensors or dtype_of(inputs[0]).startswith(("int", "uint")):
        return convert("Mod", list(inputs), attributes)
    dtype = dtype_of(inputs[0])
    work = dtype if dtype == "float64" else "float32"

    def remainder(x: Any, y: Any) -> Any:
        """Equal x - floor(x / y) y, without its overflow, and with the sign of zero."""
        a, b = x.astype(work), y.astype(work)
        rest = tirx.truncmod(a, b)
        zero = tirx.const(0.0, work)
        other = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
        signed_zero = tirx.copysign(zero, b)
        result = tirx.if_then_else(other, rest + b, tirx.if_then_else(rest == zero, signed_zero, rest))
        return result.astype(dtype)

    return elementwise(builder, inputs, remainder, "mod")


def _power(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Pow of integers by squaring; the result has the type of the base."""
    if not all(isinstance(x.ty, relax.TensorType) for x in inputs):
        return convert("Pow", list(inputs), attributes)
    base, exponent = dtype_of(inputs[0]), dtype_of(inputs[1])
    integers = ("int", "uint")
    if not base.startswith(integers):
        if exponent == base:
            return convert("Pow", list(inputs), attributes)
        return convert("Pow", [inputs[0], builder.emit(relax.op.astype(inputs[1], base))], attributes)
    if not exponent.startswith(integers):
        wide = builder.emit(relax.op.astype(inputs[0], "float64"))
        raised = relax.op.power(wide, builder.emit(relax.op.astype(inputs[1], "float64")))
        return relax.op.astype(builder.emit(raised), base)
    value = constant(inputs[1], attributes)
    bits = min(DataType(base).bits, 64) if value is None else max(1, int(value.max(initial=1)).bit_length())
    if value is not None and value.min(initial=0) < 0:
        raise ValueError("Pow of an integer to a negative exponent")

    def raise_to(x: Any, count: Any) -> Any:
        one, result, square = tirx.const(1, base), tirx.const(1, base), x
        for bit in range(min(bits, 6)):
            odd = (count.astype("int64") >> tirx.const(bit, "int64")) & tirx.const(1, "int64")
            result = result * tirx.Select(odd == tirx.const(1, "int64"), square, one)
            square = square * square
        return result

    return elementwise(builder, inputs, raise_to, "integer_power")


CONVERTERS: Mapping[str, Converter] = {"BitShift": _bit_shift, "BitCast": _bit_cast, "Mod": _mod, "Pow": _power}

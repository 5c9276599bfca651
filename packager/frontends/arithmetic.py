"""Emits arithmetic that Relax's operators lack, or compute otherwise: shifts, bit casts, remainders, integer powers.

``builder`` is a relax.BlockBuilder. Operands are tensors of one type, which are broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tvm import te, tirx, topi
from tvm.relax.frontend.onnx.onnx_frontend import compute_broadcast_shape
from tvm.runtime import DataType


def elementwise(builder: Any, inputs: Sequence[Any], function: Any, name: str) -> Any:
    """Apply ``function`` elementwise, with broadcasting."""

    def compute(*tensors: Any) -> Any:
        shape = reduce(compute_broadcast_shape, (tensor.shape for tensor in tensors))
        wide = tensors if len(tensors) == 1 else [topi.broadcast_to(tensor, shape) for tensor in tensors]
        return te.compute(shape, lambda *i: function(*(tensor(*i) for tensor in wide)), name=name)

    return builder.call_te(compute, *inputs, primfunc_name_hint=name)


def shift(builder: Any, inputs: Sequence[Any], dtype: str, *, left: bool) -> Any:
    """Shift integers of ``dtype`` by counts of it.

    A shift by a count outside [0, bits) is undefined in C: here it is 0, or -1 for a negative number shifted right.
    """
    bits, signed = DataType(dtype).bits, dtype.startswith("int")

    def element(x: Any, count: Any) -> Any:
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

    return elementwise(builder, inputs, element, "bit_shift")


def bit_cast(builder: Any, data: Any, dtype: str) -> Any:
    """Reinterpret elements as others of the same size."""
    return elementwise(builder, [data], lambda x: tirx.reinterpret(dtype, x), "bit_cast")


def remainder(builder: Any, inputs: Sequence[Any], dtype: str) -> Any:
    """Return x - floor(x / y) y of floats, without its overflow and rounding, and with the sign of zero."""
    work = dtype if dtype == "float64" else "float32"

    def element(x: Any, y: Any) -> Any:
        a, b = x.astype(work), y.astype(work)
        rest = tirx.truncmod(a, b)
        zero = tirx.const(0.0, work)
        other = tirx.any(tirx.all(rest < zero, b > zero), tirx.all(rest > zero, b < zero))
        signed_zero = tirx.copysign(zero, b)
        result = tirx.if_then_else(other, rest + b, tirx.if_then_else(rest == zero, signed_zero, rest))
        return result.astype(dtype)

    return elementwise(builder, inputs, element, "mod")


def integer_power(builder: Any, inputs: Sequence[Any], dtype: str, largest: int | None) -> Any:
    """Raise integers of ``dtype`` to exponents from 0 to ``largest``, if that is known, by squaring."""
    bits = min(DataType(dtype).bits, 64) if largest is None else max(1, largest.bit_length())

    def element(x: Any, count: Any) -> Any:
        one, result, square = tirx.const(1, dtype), tirx.const(1, dtype), x
        for bit in range(min(bits, 6)):
            odd = (count.astype("int64") >> tirx.const(bit, "int64")) & tirx.const(1, "int64")
            result = result * tirx.Select(odd == tirx.const(1, "int64"), square, one)
            square = square * square
        return result

    return elementwise(builder, inputs, element, "integer_power")

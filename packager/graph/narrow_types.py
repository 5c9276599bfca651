"""Converts narrow types (at most 8 bits) with integer operations, identically on every device.

An element occupies the low bits of a byte; the high bits are ignored, and written as 0. Sources: the tables of ONNX's
Cast, https://onnx.ai/onnx/operators/onnx__Cast.html; Micikevicius et al. 2022, "FP8 Formats for Deep Learning";
OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

NATIVE = "float8_e4m3fn"
"""The one narrow type that Relax operators and backends support natively."""
EXPONENTS = "float8_e8m0fnu"
"""E8M0: 2^(code - 127); 255 is NaN. No sign, no zero."""


@dataclass(frozen=True)
class FloatFormat:
    """A sign, a biased exponent, and ``mantissa`` bits; codes exclude the sign.

    ``overflow`` is the code of values beyond the largest number without saturation, ``nan`` that of NaN. ``one_zero``:
    0 is unsigned, and the code of -0 is NaN.
    """

    bits: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    one_zero: bool = False


FLOATS = {
    "float8_e4m3fn": FloatFormat(8, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": FloatFormat(8, 3, 8, 0x7F, 0x80, 0x80, one_zero=True),
    "float8_e5m2": FloatFormat(8, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": FloatFormat(8, 2, 16, 0x7F, 0x80, 0x80, one_zero=True),
    # No infinities and NaN: large values saturate, and NaN becomes -0, as in ml_dtypes.
    "float4_e2m1fn": FloatFormat(4, 1, 1, 0x7, 0x7, 0x8),
}
INTEGERS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of the sub-byte integers."""


_WIDE = ("float32", "float64")


def widened(name: str) -> str:
    """Return the result type of ``decode``, which represents all values."""
    return {"i": "int8", "u": "uint8"}.get(name[0], "float32")


def decode(name: str, byte: Any) -> Any:
    """Convert an element in a uint8 to type ``widened(name)``."""
    if name in INTEGERS:
        rest = tirx.const(8 - INTEGERS[name], "uint8")
        raised = tirx.reinterpret(widened(name), byte << rest)
        return raised >> rest.astype(widened(name))
    code = byte.astype("uint32")
    if name == EXPONENTS:
        least = tirx.Select(code == _number(0), _number(1 << 22), code << _number(23))  # 2^-127 is subnormal
        return tirx.reinterpret("float32", tirx.Select(code == _number(255), _number(0x7FC00000), least))
    form = FLOATS[name]
    sign = (code >> _number(form.bits - 1)) & _number(1)
    rest = code & _number((1 << (form.bits - 1)) - 1)
    normal = (rest << _number(23 - form.mantissa)) + _number((127 - form.bias) << 23)
    least = tirx.const(2.0 ** (1 - form.bias - form.mantissa), "float32")
    subnormal = tirx.reinterpret("uint32", rest.astype("float32") * least)
    value = tirx.Select(rest < _number(1 << form.mantissa), subnormal, normal) | (sign << _number(31))
    if form.one_zero:
        value = tirx.Select(code == _number(form.nan), _number(0x7FC00000), value)
    elif form.bits == 8:
        infinite = form.overflow != form.nan
        if infinite:
            value = tirx.Select(rest == _number(form.overflow), _number(0x7F800000) | (sign << _number(31)), value)
        value = tirx.Select(rest > _number(form.largest + infinite), _number(0x7FC00000), value)
    return tirx.reinterpret("float32", value)


def _number(value: int, dtype: str = "uint32") -> Any:
    return tirx.const(value, dtype)


def encode(name: str, value: Any, dtype: str, saturate: bool, rounding: str = "up") -> Any:
    """Convert a value of type ``dtype`` (integer, bool, float32 or float64) to an element in a uint8.

    Rounds to nearest even, except EXPONENTS, which use ``rounding``: up, down or nearest. Floats are truncated to
    integers. Integers wrap unless they saturate.
    """
    if name in INTEGERS:
        return _encode_integer(name, value, dtype, saturate)
    if dtype not in _WIDE or name == EXPONENTS:
        value, dtype = value.astype("float32"), "float32"
    if name == EXPONENTS:
        return _encode_exponent(value, saturate, rounding)
    return _encode_float(FLOATS[name], value, np.finfo(dtype), saturate)


def _encode_integer(name: str, value: Any, dtype: str, saturate: bool) -> Any:
    bits = INTEGERS[name]
    if dtype in _WIDE:
        # Out of range values are unspecified in the standard; clamp, since C's conversion is undefined beyond int32.
        limit = tirx.const(2.0**31 - 128, dtype)
        number = tirx.Select(value == value, value, tirx.const(0.0, dtype))  # noqa: PLR0124  (NaN)
        value = tirx.max(tirx.min(number, limit), -limit).astype("int32")
    if saturate:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if name.startswith("int") else (0, (1 << bits) - 1)
        value = tirx.max(tirx.min(value.astype("int32"), _number(high, "int32")), _number(low, "int32"))
    return value.astype("uint8") & _number((1 << bits) - 1, "uint8")


def _encode_float(form: FloatFormat, value: Any, wide: np.finfo[Any], saturate: bool) -> Any:
    mantissa, bias = wide.nmant, wide.maxexp - 1
    unsigned, signed = f"uint{wide.bits}", f"int{wide.bits}"

    def number(n: int, dtype: str = unsigned) -> Any:
        return tirx.const(n, dtype)

    pattern = tirx.reinterpret(unsigned, value)
    sign = pattern >> number(wide.bits - 1)
    size = pattern & number((1 << (wide.bits - 1)) - 1)
    infinity = number((2 * bias + 1) << mantissa)
    field = size >> number(mantissa)
    lead = tirx.Select(field > number(0), number(1 << mantissa), number(0))
    significand = (size & number((1 << mantissa) - 1)) | lead
    exponent = field.astype(signed) + number(form.bias - bias, signed)  # biased; below 1: subnormal
    one = number(1, signed)
    lost = number(mantissa - form.mantissa, signed) + tirx.max(one - exponent, number(0, signed))
    shift = tirx.min(lost, number(mantissa + 2, signed)).astype(unsigned)  # larger shifts also give 0
    odd = (significand >> shift) & number(1)
    half = (number(1) << (shift - number(1))) - number(1)
    rounded = (significand + half + odd) >> shift
    below = (tirx.max(exponent, one) - one).astype(unsigned)
    code = (below << number(form.mantissa)) + rounded
    beyond = number(form.largest if saturate else form.overflow)
    signs = sign << number(form.bits - 1)
    if form.one_zero:
        signs = tirx.Select(code == number(0), number(0), signs)
        over = beyond | (signs if saturate else number(0))
    else:
        over = beyond | signs
    nan = number(form.nan) | (number(0) if form.one_zero or form.bits < 8 else signs)
    result = tirx.Select(code > number(form.largest), over, code | signs)
    return tirx.Select(size > infinity, nan, result).astype("uint8")


def _encode_exponent(value: Any, saturate: bool, rounding: str) -> Any:
    """Ignores the sign: negative numbers are unspecified in the standard."""
    size = tirx.reinterpret("uint32", value) & _number(0x7FFFFFFF)
    exponent, fraction = size >> _number(23), size & _number(0x7FFFFF)
    zero, one = _number(0), _number(1)
    # Between codes 0 and 1 (2^-127 and 2^-126) numbers are subnormal, with fractions from 2^22 to 2^23.
    if rounding == "down":
        more = zero
    elif rounding == "up":
        more = tirx.Select(fraction > tirx.Select(exponent == zero, _number(1 << 22), zero), one, zero)
    else:
        half = tirx.Select(exponent == zero, _number(3 << 21), _number(1 << 22))
        more = tirx.Select(fraction >= half, one, zero)
    code = exponent + more
    if saturate:
        code = tirx.min(code, _number(254))
    else:
        code = tirx.Select(tirx.any(size >= _number(0x7F800000), size < _number(1 << 22)), _number(255), code)
    return tirx.Select(size > _number(0x7F800000), _number(255), code).astype("uint8")

"""Convert elementwise Relax operators to C expressions.

Values of float16 are computed as float and rounded after every operator, which gives the same bits as arithmetic in
float16. Integers wrap around. ``pk_`` functions are those of ``templates/ccompiler/common``: ``functions.h.j2``,
``transcendental.h.j2``, ``powers.h.j2``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.codegen.c_text import c_float, c_integer, c_type


@dataclass(frozen=True)
class CType:
    """An element type in C: the type of its storage, the type of its values, and the suffix of its functions."""

    stored: str
    value: str
    suffix: str

    @property
    def is_float(self) -> bool:
        """Whether values are floating point."""
        return self.value in ("float", "double")


CTYPES = {
    dtype: CType(c_type(dtype), "float" if dtype == "float16" else c_type(dtype), suffix)
    for dtype, suffix in (
        ("float32", "f32"),
        ("float16", "f32"),
        ("float64", "f64"),
        ("bool", "u8"),
        ("int8", "i8"),
        ("uint8", "u8"),
        ("int16", "i16"),
        ("uint16", "u16"),
        ("int32", "i32"),
        ("int64", "i64"),
    )
}
# Functions that float64 has of the C library, and float32 as polynomials.
LIBM = ("log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")

# Divisors of remainders that are not much smaller: quotients have fewer bits.
LEAST_DIVISOR = 2.0**-22

# C templates: a and b are the operands, {t} their C type, {s} its suffix.
_FLOAT_ONLY = {
    "sqrt": "pk_sqrt_{s}(a)",
    "rsqrt": "1 / pk_sqrt_{s}(a)",
    "exp": "pk_exp_{s}(a)",
    "tanh": "pk_tanh_{s}(a)",
    "erf": "pk_erf_{s}(a)",
    "sigmoid": "pk_sigmoid_{s}(a)",
    "nn.silu": "a * pk_sigmoid_{s}(a)",
    "nn.gelu": "a * (({t})0.5 + ({t})0.5 * pk_erf_{s}(a * ({t})0.70710678118654752))",
    "nn.gelu_tanh": (
        "a * (({t})0.5 + ({t})0.5 * pk_tanh_{s}(a * ({t})0.79788456080286536 * (1 + ({t})0.044715 * a * a)))"
    ),
    "floor": "pk_floor_{s}(a)",
    "ceil": "pk_ceil_{s}(a)",
    "trunc": "pk_trunc_{s}(a)",
    "round": "pk_round_{s}(a)",
    **{name: f"pk_{name}_{{s}}(a)" for name in LIBM},
}
_FLOAT_BINARY = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "floor_divide": "pk_floor_{s}(a / b)",
    "power": "pk_pow_{s}(a, b)",
}
_INTEGER_BINARY = {
    "add": "pk_add_{s}(a, b)",
    "subtract": "pk_subtract_{s}(a, b)",
    "multiply": "pk_multiply_{s}(a, b)",
    "divide": "pk_divide_{s}(a, b)",
    "floor_divide": "pk_floor_divide_{s}(a, b)",
    "mod": "pk_remainder_{s}(a, b)",
    "floor_mod": "pk_floor_mod_{s}(a, b)",
    "bitwise_and": "a & b",
    "bitwise_or": "a | b",
    "bitwise_xor": "a ^ b",
}
_ANY_BINARY = {
    "maximum": "pk_max_{s}(a, b)",
    "minimum": "pk_min_{s}(a, b)",
    "equal": "a == b",
    "not_equal": "a != b",
    "less": "a < b",
    "less_equal": "a <= b",
    "greater": "a > b",
    "greater_equal": "a >= b",
    "logical_and": "(a != 0) & (b != 0)",
    "logical_or": "(a != 0) | (b != 0)",
    "logical_xor": "(a != 0) ^ (b != 0)",
}
_ANY_UNARY = {
    "abs": "pk_abs_{s}(a)",
    "sign": "pk_sign_{s}(a)",
    "nn.relu": "0 > a ? 0 : a",  # NaN stays NaN
    "logical_not": "a == 0",
    "broadcast_to": "a",
}

# Operators whose results for float16 are exact: they need no rounding.
EXACT = frozenset(
    [
        "nn.relu",
        "abs",
        "sign",
        "negative",
        "maximum",
        "minimum",
        "clip",
        "where",
        "broadcast_to",
        "floor",
        "ceil",
        "trunc",
        "round",
    ]
)

ARITIES: dict[str, int] = {
    **dict.fromkeys(_FLOAT_ONLY, 1),
    **dict.fromkeys(_ANY_UNARY, 1),
    **dict.fromkeys(("negative", "square", "bitwise_not", "isnan", "isinf", "isfinite"), 1),
    **dict.fromkeys(("clip", "astype", "nn.leakyrelu"), 1),
    **dict.fromkeys(_FLOAT_BINARY, 2),
    **dict.fromkeys(_INTEGER_BINARY, 2),
    **dict.fromkeys(_ANY_BINARY, 2),
    "where": 3,
}


def literal(value: float | int, dtype: str) -> str:
    """Return a number as a C expression of the value type of ``dtype``, exactly."""
    ctype = CTYPES[dtype]
    if not ctype.is_float:
        return c_integer(int(value))
    text = c_float(float(np.dtype(dtype).type(value)), double=ctype.value == "double")
    return f"({text})" if text.startswith("-") else text


def as_result(text: str, dtype: str) -> str:
    """Return a C expression converted to the value type of ``dtype``."""
    return f"pk_round_half({text})" if dtype == "float16" else f"({CTYPES[dtype].value}){text}"


def element(text: str, dtype: str) -> str:
    """Return C that reads an element of memory as a value."""
    return f"pk_widen({text})" if dtype == "float16" else text


def expression(
    name: str,
    operands: Sequence[str],
    dtypes: Sequence[str],
    result: str,
    attributes: Any,
    numbers: Sequence[float],
) -> str | None:
    """Return the C expression of an operator, or None if there is none for these element types.

    ``operands`` are C expressions without side effects of the value types of ``dtypes``.
    """
    text = _special(name, operands, dtypes, result, attributes, numbers)
    if text is None:
        dtype = dtypes[1] if name == "where" else dtypes[0]
        found = _template(name, CTYPES[dtype])
        if found is None or (name != "astype" and len(set(dtypes)) > 1):
            return None
        names = dict(zip("ab", operands, strict=False))
        filled = found.format(t=CTYPES[dtype].value, s=CTYPES[dtype].suffix)
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), filled)
    if name in EXACT and result == "float16":
        return text
    return f"pk_round_half({text})" if result == "float16" else f"({CTYPES[result].value})({text})"


def _template(name: str, ctype: CType) -> str | None:
    tables = [_ANY_UNARY, _ANY_BINARY, *([_FLOAT_ONLY, _FLOAT_BINARY] if ctype.is_float else [_INTEGER_BINARY])]
    return next((table[name] for table in tables if name in table), None)


def _special(
    name: str,
    operands: Sequence[str],
    dtypes: Sequence[str],
    result: str,
    attributes: Any,
    numbers: Sequence[float],
) -> str | None:
    """Return the expression of an operator that no table has; None for others."""
    dtype = dtypes[0]
    ctype = CTYPES[dtype]
    a = operands[0]
    if name == "astype":
        return f"{a} != 0" if result == "bool" else f"({CTYPES[result].value}){a}"
    if name == "where":
        return f"{a} ? {operands[1]} : {operands[2]}" if dtypes[1] == dtypes[2] else None
    if name == "clip":
        low, high = (_bound(number, dtype) for number in numbers)
        if ctype.is_float:  # NaN stays NaN
            return f"pk_clip_{ctype.suffix}({a}, {low}, {high})"
        return f"pk_min_{ctype.suffix}(pk_max_{ctype.suffix}({a}, {low}), {high})"
    if name == "quotient":
        return _quotient(a, operands[1])
    if name in ("mod", "floor_mod") and ctype.value == "float":
        short = operands[1][:1].isdigit() or operands[1].startswith("(-")
        near = "_near" if short and abs(float.fromhex(operands[1].strip("()f"))) >= LEAST_DIVISOR else ""
        rest = f"pk_fmod{near}_f32({a}, {operands[1]})"
        return rest if name == "mod" else f"pk_floor_rest({rest}, {operands[1]})"
    if name in ("maximum", "minimum") and ctype.is_float:
        return _bounded(name, operands)
    if name == "nn.leakyrelu" and ctype.is_float:
        return f"{a} < 0 ? {a} * {literal(float(attributes.alpha), dtype)} : {a}"
    if name == "negative":
        return f"-{a}" if ctype.is_float else f"pk_subtract_{ctype.suffix}(0, {a})"
    if name == "square":
        return f"{a} * {a}" if ctype.is_float else f"pk_multiply_{ctype.suffix}({a}, {a})"
    if name == "bitwise_not" and not ctype.is_float:
        return f"{a} == 0" if dtype == "bool" else f"~{a}"
    if name in ("isnan", "isinf", "isfinite"):
        plain = {"isnan": "0", "isinf": "0", "isfinite": "1"}[name]
        return f"__builtin_{name}({a})" if ctype.is_float else plain
    if name == "power" and ctype.is_float:
        return _power(a, operands[1], dtype)
    if name == "sum_of_tensors":
        if ctype.is_float:
            return " + ".join(operands)
        return functools.reduce(lambda total, operand: f"pk_add_{ctype.suffix}({total}, {operand})", operands)
    return None


def _bounded(name: str, operands: Sequence[str]) -> str | None:
    """Return the maximum or minimum of a value and a number, which is no NaN: one comparison; None for others."""
    numbers = [text for text in operands if text.lstrip("(-")[:1].isdigit()]
    values = [text for text in operands if text not in numbers]
    if len(numbers) != 1 or len(values) != 1:
        return None
    return f"{numbers[0]} {'>' if name == 'maximum' else '<'} {values[0]} ? {numbers[0]} : {values[0]}"


def _quotient(a: str, divisor: str) -> str:
    """Return the expression of a quotient of float32 that is only rounded: two products in place of a division.

    The reciprocal has twice the bits of a float (Brisebarre and Muller, "Correctly rounded multiplication by arbitrary
    precision constants", 2008), so that the result is the quotient's, but for one that is within 2**-47 of the middle
    of two floats.
    """
    number = float.fromhex(divisor.strip("()f"))
    near = float(np.float32(1 / number))
    # 1 / number - near: the product is exact in float64, and so is the difference.
    rest = float(np.float32((1 - near * number) / number))
    return f"pk_quotient({a}, {divisor}, {literal(near, 'float32')}, {literal(rest, 'float32')})"


def _power(a: str, exponent: str, dtype: str) -> str | None:
    """Return the expression of a power by a small integer or a half, which needs no logarithm."""
    one, root = literal(1.0, dtype), f"pk_root_{CTYPES[dtype].suffix}({a})"
    texts = {
        **{2.0: f"{a} * {a}", 3.0: f"{a} * {a} * {a}", 4.0: f"({a} * {a}) * ({a} * {a})", 1.0: a, 0.5: root},
        **{-1.0: f"{one} / {a}", -2.0: f"{one} / ({a} * {a})", -0.5: f"{one} / {root}"},
    }
    return next((text for number, text in texts.items() if exponent == literal(number, dtype)), None)


def _bound(number: float, dtype: str) -> str:
    """Return a bound of clip, limited to the range of the type."""
    if CTYPES[dtype].is_float:
        return literal(number, dtype)
    limits = np.iinfo(dtype)
    return literal(int(max(limits.min, min(limits.max, number))), dtype)

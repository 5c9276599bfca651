"""Cheap float32 approximations of math functions whose result is rounded to 16 bits.

CUDA's libm is accurate to 1-2 ulp, and some of its functions make a memory-bound kernel compute-bound. Errors here stay
below 1e-6 (absolute for ``erf``, relative for ``exp``), 1/500 of the rounding error of float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import PrimType
from tvm_ffi import structural_map

from packager.lower.kernels import ROUNDED

WIDE = PrimType("float32")
# Functions whose argument and result types are equal.
FUNCTIONS = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
        *("erf", "exp", "exp2", "exp10", "log", "log1p", "log2", "log10", "pow", "rsqrt", "sigmoid", "sqrt"),
        *("ceil", "copysign", "fabs", "floor", "fma", "fmod", "hypot", "ldexp", "nearbyint", "round", "trunc"),
        *("if_then_else", "isfinite", "isinf", "isnan"),
    )
)
# The largest exponent of a power that is multiplied.
MOST_FACTORS = 16
# erf(x) / x for |x| < ERF_END as a minimax polynomial of 2 x^2 / ERF_END^2 - 1, which is in [-1, 1] (no cancellation).
# Beyond ERF_END, erf is 1 up to 4e-7.
ERF_END = 3.6
ERF = (
    0.3927120268344879,
    -0.1954883486032486,
    0.14381824433803558,
    -0.11385945975780487,
    0.08971663564443588,
    -0.0674690380692482,
    0.04873833805322647,
    -0.034590546041727066,
    0.020317530259490013,
    -0.00804036296904087,
    0.005455614998936653,
    -0.005852150730788708,
    0.0023193059023469687,
)


@tirx.transform.prim_func_pass(opt_level=0, name="DivideFast")  # type: ignore[untyped-decorator]
def divide_fast(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Divide float32 by an approximate reciprocal where all results are rounded to 16 bits.

    It is off by 2 ulp at most; of divisors beyond 2^126 results are 0 (CUDA C++ Programming Guide, "Intrinsic
    Functions"). Exact quotients take ten instructions and a branch.
    """
    if not (function.attrs and ROUNDED in function.attrs):
        return function
    return function.with_body(structural_map(function.body, (tirx.Div, _fast_quotient)))


def _fast_quotient(quotient: Any) -> Any:
    if str(quotient.ty).split("x")[0] != "float32":
        return quotient
    divisor = quotient.b.value if isinstance(quotient.b, tirx.Broadcast) else quotient.b
    if isinstance(divisor, tirx.FloatImm) and 2.0**-126 < abs(divisor.value) < 2.0**126:
        inverse = _number(1 / divisor.value)
        wide = isinstance(quotient.b, tirx.Broadcast)
        return tirx.Mul(quotient.a, tirx.Broadcast(inverse, quotient.b.lanes) if wide else inverse)
    return tirx.call_pure_extern(quotient.ty, "__fdividef", quotient.a, quotient.b)


def rounded_function(name: str, arguments: Sequence[Any]) -> Any | None:
    """Return an approximation for a float32 result that will be rounded to 16 bits; None to use CUDA's function."""
    return _CHEAP[name](*arguments) if name in _CHEAP else None


def _exp(x: Any) -> Any:
    return tirx.exp2(tirx.Mul(x, _number(math.log2(math.e))))


def _pow(x: Any, exponent: Any) -> Any | None:
    """Multiply where the exponent is a small integer: each product is off by half an ulp, and ``powf`` takes a hundred
    instructions."""
    number = exponent.value if isinstance(exponent, tirx.FloatImm) else 0.0
    if number != int(number) or not 2 <= number <= MOST_FACTORS:
        return None
    base = tirx.Var("base", WIDE)
    square, result, left = base, None, int(number)
    while left:
        if left % 2:
            result = square if result is None else tirx.Mul(result, square)
        square, left = tirx.Mul(square, square), left // 2
    return tirx.Let(base, x, result)


def _erf(x: Any) -> Any:
    """Clamp by comparison, not by min, which would drop a NaN."""
    whole, inside, place = (tirx.Var(name, WIDE) for name in ("whole", "inside", "place"))
    end = _number(ERF_END)
    result = _number(ERF[-1])
    for factor in reversed(ERF[:-1]):
        result = tirx.Add(tirx.Mul(result, place), _number(factor))
    square = tirx.Sub(tirx.Mul(tirx.Mul(inside, inside), _number(2 / ERF_END**2)), _number(1.0))
    chosen = tirx.Select(tirx.GT(tirx.abs(whole), end), tirx.copysign(end, whole), whole)
    return tirx.Let(whole, x, tirx.Let(inside, chosen, tirx.Let(place, square, tirx.Mul(result, inside))))


def _number(value: float) -> Any:
    return tirx.FloatImm(WIDE, value)


_CHEAP: dict[str, Callable[..., Any]] = {"exp": _exp, "erf": _erf, "pow": _pow}

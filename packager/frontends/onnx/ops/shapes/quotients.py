"""Quotients in shape arithmetic: exporters divide lengths as floats, and round the result up or down to an integer.

``ceil((length - kernel) / stride + 1)`` is exact as an integer division as long as the model's floats are: a quotient
whose numerator is small rounds to an integer only if it is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.sym import Analyzer

# float32 has 24 bits: two are left for the roundings on the way.
MAX_NUMERATOR = 2**22
# Constants of floats with greater denominators are no parts of shape arithmetic.
MAX_DENOMINATOR = 2**10


class NotExactError(Exception):
    """The result is not exact for all sizes, or not representable in a shape."""


@dataclass(frozen=True)
class Quotient:
    """An integer, or an expression, divided by a positive integer."""

    numerator: Any
    denominator: int

    def is_exact(self) -> bool:
        """Whether floats have it without rounding."""
        return self.denominator & (self.denominator - 1) == 0

    def rounded(self, up: bool, analyzer: Analyzer) -> Any:
        """Return the next integer, or expression, upward or downward. Raises NotExactError for large numerators."""
        top = self.numerator
        most = abs(top) if isinstance(top, int) else _magnitude(analyzer, top)
        if most > MAX_NUMERATOR:
            raise NotExactError
        top = top + self.denominator - 1 if up else top
        return top // self.denominator if isinstance(top, int) else tirx.floordiv(top, self.denominator)


def _magnitude(analyzer: Analyzer, expression: Any) -> int:
    bound = analyzer.const_int_bound(expression)
    return max(abs(int(bound.min_value)), abs(int(bound.max_value)))


def quotient(value: Any) -> Quotient:
    """Return a number, an expression or a quotient as a quotient."""
    return value if isinstance(value, Quotient) else Quotient(value, 1)


def fractions(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return floats as integers and quotients; None if some are no multiples of a small power of two."""
    if not np.isfinite(array).all():
        return None
    found = [Fraction(float(element)) for element in array.reshape(-1)]
    if any(f.denominator > MAX_DENOMINATOR or abs(f.numerator) > MAX_NUMERATOR for f in found):
        return None
    result = np.empty(len(found), dtype=object)
    for index, f in enumerate(found):
        result[index] = f.numerator if f.denominator == 1 else Quotient(f.numerator, f.denominator)
    return result.reshape(array.shape)


def _plus(a: Quotient, b: Quotient) -> Quotient:
    """Quotients that floats round may add up to an integer that the floats miss, unless their divisors are coprime."""
    if not (a.is_exact() and b.is_exact()) and math.gcd(a.denominator, b.denominator) > 1:
        raise NotExactError
    bottom = math.lcm(a.denominator, b.denominator)
    return Quotient(a.numerator * (bottom // a.denominator) + b.numerator * (bottom // b.denominator), bottom)


def _times(a: Quotient, b: Quotient) -> Quotient:
    if not (a.is_exact() and b.is_exact()):
        raise NotExactError
    return Quotient(a.numerator * b.numerator, a.denominator * b.denominator)


def _over(a: Quotient, b: Quotient) -> Quotient:
    if not isinstance(b.numerator, int) or b.numerator == 0 or b.denominator != 1:
        raise NotExactError
    sign = 1 if b.numerator > 0 else -1
    return Quotient(a.numerator * sign, a.denominator * abs(b.numerator))


def number(value: Any) -> Fraction:
    """Return an integer or a quotient of integers as a number. Raises ValueError for expressions."""
    top = quotient(value).numerator
    if not isinstance(top, int):
        raise ValueError("a start or a step is symbolic, and another bound is a fraction")
    return Fraction(top, quotient(value).denominator)


def steps(start: Any, limit: Any, step: Any, analyzer: Analyzer) -> Any:
    """Return how many steps there are from ``start`` to before ``limit``, which may be an expression.

    Raises ValueError for a step that is not a positive number, and where floats may round to another number of steps.
    """
    each = number(step)
    if each <= 0:
        raise ValueError("the step of Range is not a positive number, and a bound is symbolic")
    try:
        first = number(start)
        way = _plus(quotient(limit), Quotient(-first.numerator, first.denominator))
        ratio = Quotient(way.numerator * each.denominator, way.denominator * each.numerator)
        count = ratio.rounded(up=True, analyzer=analyzer)
    except NotExactError:
        raise ValueError("the length of Range may round to another one in floats") from None
    return max(count, 0) if isinstance(count, int) else analyzer.simplify(tirx.max(count, 0))


BINARY: Mapping[str, Callable[[Quotient, Quotient], Quotient]] = {
    "Add": _plus,
    "Sub": lambda a, b: _plus(a, Quotient(0 - b.numerator, b.denominator)),
    "Mul": _times,
    "Div": _over,
}
# Operators that round to an integer: whether upward. A cast truncates, which is downward for nothing negative.
ROUNDING = {"Floor": False, "Ceil": True, "Cast": False}
# Operators that only place elements.
PLACING = ("Identity", "Squeeze", "Unsqueeze", "Gather", "Slice", "Reshape", "Concat", "Expand")


def compute(op_type: str, operands: list[NDArray[Any]], to_integer: bool, analyzer: Analyzer) -> NDArray[Any] | None:
    """Evaluate an operator on quotients; None unless it rounds them, or is arithmetic. Raises NotExactError."""
    if op_type in BINARY:
        function = BINARY[op_type]
        return _each(lambda a, b: _reduced(function(quotient(a), quotient(b))), *operands)
    if op_type == "Cast" and not to_integer:
        return operands[0]
    if op_type not in ROUNDING:
        return None
    if op_type == "Cast" and any(_least(e, analyzer) < 0 for e in operands[0].reshape(-1)):
        raise NotExactError
    return _each(lambda e: quotient(e).rounded(ROUNDING[op_type], analyzer), operands[0])


def _each(function: Callable[..., Any], *operands: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), dtype=object)


def _least(value: Any, analyzer: Analyzer) -> int:
    top = quotient(value).numerator
    return top if isinstance(top, int) else int(analyzer.const_int_bound(top).min_value)


def _reduced(value: Quotient) -> Any:
    """Return an integer or an expression if the denominator is 1."""
    if isinstance(value.numerator, int):
        exact = Fraction(value.numerator, value.denominator)
        value = Quotient(exact.numerator, exact.denominator)
    return value.numerator if value.denominator == 1 else value

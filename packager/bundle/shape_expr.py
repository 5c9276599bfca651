"""Parses and evaluates symbolic extents such as ``2*n+1``: non-negative integers, dim names, ``+ - * // %``,
``min(a, b)``, ``max(a, b)`` and parentheses.

Not ``eval``: the text comes from an untrusted file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub
from typing import Any, Generic, TypeVar

MAX_LENGTH = 512
MAX_DEPTH = 32

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod},
    **{"min": min, "max": max},
}
_TOKEN = re.compile(r"\s*(?:(?P<integer>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<operator>//|[-+*%(),]))")

V = TypeVar("V")


class ShapeExpressionError(ValueError):
    """The text is not an expression, names an unknown dim, or divides by zero."""


def evaluate(expression: str, dims: Mapping[str, int]) -> int:
    """Evaluate ``expression`` for these values of the dims; ``//`` and ``%`` are floor division and its remainder.

    Raises ShapeExpressionError.
    """
    try:
        return fold(expression, int, dims.__getitem__, lambda operator, a, b: int(OPERATORS[operator](a, b)))
    except KeyError as error:
        raise ShapeExpressionError(f"unknown dim {error} in {expression!r}") from None
    except ZeroDivisionError:
        raise ShapeExpressionError(f"division by zero in {expression!r}") from None


def interval(expression: str, bounds: Callable[[str], tuple[int, int]], *, limited: bool = True) -> tuple[int, int]:
    """Return bounds of ``expression`` by interval arithmetic; ``bounds`` gives those of each name.

    Raises ShapeExpressionError, also for a divisor that can be zero.
    """
    return fold(expression, lambda n: (n, n), bounds, _interval_of, limited=limited)


def _interval_of(operator: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if operator == "%":
        return 0, max(b[1] - 1, 0)
    if operator == "//" and b[0] <= 0 <= b[1]:
        raise ShapeExpressionError("a shape divides by an expression that can be zero")
    corners = [OPERATORS[operator](x, y) for x in a for y in b]
    return min(corners), max(corners)


def names(expression: str) -> frozenset[str]:
    """Return the names of the dims in ``expression``. Raises ShapeExpressionError if it does not parse."""
    none: frozenset[str] = frozenset()
    return fold(expression, lambda _: none, lambda name: frozenset((name,)), lambda _, a, b: a | b)


def fold(
    expression: str,
    number: Callable[[int], V],
    name: Callable[[str], V],
    apply: Callable[[str, V, V], V],
    *,
    limited: bool = True,
) -> V:
    """Return the value of ``expression`` in any arithmetic: ``apply`` gets one of ``OPERATORS`` and two values.

    Without ``limited`` it may be as long, and its parentheses as deep, as this process itself writes them. Raises
    ShapeExpressionError if it does not parse.
    """
    return _Parser(expression, number, name, apply, MAX_DEPTH if limited else None).parse()


@functools.lru_cache(maxsize=1024)
def _tokens(expression: str, limited: bool) -> tuple[tuple[str, str], ...]:
    if limited and len(expression) > MAX_LENGTH:
        raise ShapeExpressionError(f"shape expression is longer than {MAX_LENGTH} characters")
    found = []
    position, end = 0, len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None or match.lastgroup is None:
            raise ShapeExpressionError(f"unexpected {expression[position:].strip()[:1]!r} in {expression!r}")
        if limited and match.lastgroup == "integer" and len(match["integer"]) > 18:
            raise ShapeExpressionError(f"integer too large in {expression!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tuple(found)


@dataclass
class _Parser(Generic[V]):
    """Recursive-descent evaluator."""

    expression: str
    number: Callable[[int], V]
    name: Callable[[str], V]
    apply: Callable[[str, V, V], V]
    max_depth: int | None
    position: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        self.tokens = _tokens(self.expression, self.max_depth is not None)

    def parse(self) -> V:
        value = self._sum()
        if self.position != len(self.tokens):
            raise self._unexpected()
        return value

    def _peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def _unexpected(self) -> ShapeExpressionError:
        found = repr(self._peek()) if self._peek() else "end"
        return ShapeExpressionError(f"unexpected {found} in {self.expression!r}")

    def _sum(self) -> V:
        return self._chain(("+", "-"), lambda: self._chain(("*", "//", "%"), self._operand))

    def _chain(self, operators: tuple[str, ...], operand: Callable[[], V]) -> V:
        value = operand()
        while (operator := self._peek()) in operators:
            self.position += 1
            value = self.apply(operator, value, operand())
        return value

    def _operand(self) -> V:
        if self.position == len(self.tokens):
            raise self._unexpected()
        kind, token = self.tokens[self.position]
        if kind == "operator" and token != "(":
            raise self._unexpected()
        self.position += 1
        if kind == "integer":
            return self.number(int(token))
        if kind == "name" and not (token in ("min", "max") and self._peek() == "("):
            return self.name(token)
        if kind == "name":
            self._expect("(")
        self.depth += 1
        if self.max_depth is not None and self.depth > self.max_depth:
            raise ShapeExpressionError(f"more than {self.max_depth} nested parentheses")
        value = self._sum()
        if kind == "name":
            self._expect(",")
            value = self.apply(token, value, self._sum())
        self._expect(")")
        self.depth -= 1
        return value

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._unexpected()
        self.position += 1

"""Parses and evaluates symbolic extents such as ``2*n+1``: non-negative integers, dim names, ``+ - * // %``,
``min(a, b)``, ``max(a, b)`` and parentheses.

Not ``eval``: the text comes from an untrusted file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MAX_LENGTH = 512
MAX_DEPTH = 32

_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {"min": min, "max": max}
_TOKEN = re.compile(r"\s*(?:(?P<integer>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<operator>//|[-+*%(),]))")


class ShapeExpressionError(ValueError):
    """The text is not an expression, names an unknown dim, or divides by zero."""


def evaluate(expression: str, dims: Mapping[str, int]) -> int:
    """Evaluate ``expression`` for these values of the dims; ``//`` and ``%`` are floor division and its remainder.

    Raises ShapeExpressionError.
    """
    return _Parser(expression, dims).parse()


def names(expression: str) -> frozenset[str]:
    """Return the names of the dims in ``expression``. Raises ShapeExpressionError if it does not parse."""
    parser = _Parser(expression, None)
    parser.parse()
    return frozenset(parser.names)


def _tokens(expression: str) -> list[tuple[str, str]]:
    if len(expression) > MAX_LENGTH:
        raise ShapeExpressionError(f"shape expression is longer than {MAX_LENGTH} characters")
    found = []
    position, end = 0, len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None or match.lastgroup is None:
            raise ShapeExpressionError(f"unexpected {expression[position:].strip()[:1]!r} in {expression!r}")
        if match.lastgroup == "integer" and len(match["integer"]) > 18:
            raise ShapeExpressionError(f"integer too large in {expression!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return found


class _Parser:
    """Recursive-descent evaluator; if ``dims`` is None it only checks the syntax (every name and quotient is 1)."""

    def __init__(self, expression: str, dims: Mapping[str, int] | None) -> None:
        self.expression = expression
        self.dims = dims
        self.tokens = _tokens(expression)
        self.position = 0
        self.depth = 0
        self.names: set[str] = set()

    def parse(self) -> int:
        value = self._sum()
        if self.position != len(self.tokens):
            raise self._unexpected()
        return value

    def _peek(self) -> str:
        return self.tokens[self.position][1] if self.position < len(self.tokens) else ""

    def _unexpected(self) -> ShapeExpressionError:
        found = repr(self._peek()) if self._peek() else "end"
        return ShapeExpressionError(f"unexpected {found} in {self.expression!r}")

    def _sum(self) -> int:
        value = self._product()
        while self._peek() in ("+", "-"):
            operator = self._peek()
            self.position += 1
            right = self._product()
            value = value + right if operator == "+" else value - right
        return value

    def _product(self) -> int:
        value = self._operand()
        while self._peek() in ("*", "//", "%"):
            operator = self._peek()
            self.position += 1
            right = self._operand()
            if operator == "*":
                value *= right
            elif self.dims is None:
                value = 1
            elif right == 0:
                raise ShapeExpressionError(f"division by zero in {self.expression!r}")
            else:
                value = value // right if operator == "//" else value % right
        return value

    def _operand(self) -> int:
        if self.position == len(self.tokens):
            raise self._unexpected()
        kind, token = self.tokens[self.position]
        if kind == "operator" and token != "(":
            raise self._unexpected()
        self.position += 1
        if kind == "integer":
            return int(token)
        if kind == "name":
            if token in _FUNCTIONS and self._peek() == "(":
                return self._call(token)
            self.names.add(token)
            if self.dims is None:
                return 1
            if token not in self.dims:
                raise ShapeExpressionError(f"unknown dim {token!r} in {self.expression!r}")
            return self.dims[token]
        self._descend()
        value = self._sum()
        self._expect(")")
        self.depth -= 1
        return value

    def _call(self, function: str) -> int:
        self._expect("(")
        self._descend()
        left = self._sum()
        self._expect(",")
        right = self._sum()
        self._expect(")")
        self.depth -= 1
        return _FUNCTIONS[function](left, right)

    def _descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ShapeExpressionError(f"more than {MAX_DEPTH} nested parentheses")

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._unexpected()
        self.position += 1

"""Convert torch extents (integers, or sympy expressions over symbols) to TVM expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]
from tvm import tirx
from tvm.ir import is_prim_expr

from packager.errors import ModelError


class Symbols:
    """Converts extents. ``variables`` maps the names of torch's symbols to shape variables of the function's inputs, or
    to expressions over these."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.variables = dict(variables)

    def shape(self, meta: Any) -> list[Any]:
        """Return the extents of a torch tensor: integers, or expressions over ``variables``."""
        return [self.extent(extent) for extent in meta.shape]

    def extent(self, value: Any) -> Any:
        """Return an int for an int, an expression for a SymInt. Raises ModelError if it depends on data."""
        if isinstance(value, int):
            return value
        return self._convert(sympy.sympify(value.node.expr))

    def expression(self, expr: Any) -> Any:
        """Return a sympy expression over torch's symbols as a TVM expression. Raises ModelError."""
        return _expression(self._convert(sympy.sympify(expr)))

    def _convert(self, expr: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if str(expr) not in self.variables:
                raise ModelError(
                    f"a shape depends on {str(expr)!r}, which is not a dim of an input",
                    hint="data-dependent shapes are not supported",
                )
            return self.variables[str(expr)]
        if expr.is_Mul:
            return self._product(expr)
        name = type(expr).__name__
        if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
            return reduce(_FOLDS["Mul"], [self._convert(expr.base)] * int(expr.exp))
        if name in _FOLDS:
            return reduce(_FOLDS[name], map(self._convert, expr.args))
        raise ModelError(f"a shape contains {expr}, which is not supported")

    def _product(self, expr: Any) -> Any:
        """Return a product; torch writes exact division as multiplication by a fraction."""
        numerator, denominator = expr.as_numer_denom()
        if denominator == 1:
            return reduce(_FOLDS["Mul"], map(self._convert, expr.args))
        return _FOLDS["FloorDiv"](self._convert(numerator), self._convert(denominator))


def _expression(value: Any) -> Any:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


_FOLDS: Mapping[str, Any] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: tirx.floordiv(_expression(a), _expression(b)),
    "CleanDiv": lambda a, b: tirx.floordiv(_expression(a), _expression(b)),
    "Mod": lambda a, b: tirx.floormod(_expression(a), _expression(b)),
    "PythonMod": lambda a, b: tirx.floormod(_expression(a), _expression(b)),
    "Min": lambda a, b: tirx.Min(_expression(a), _expression(b)),
    "Max": lambda a, b: tirx.Max(_expression(a), _expression(b)),
}


def is_extent(value: Any) -> bool:
    """Tell whether a value is an integer or a TVM expression."""
    return (isinstance(value, int) and not isinstance(value, bool)) or is_prim_expr(value)

"""Converts TVM's integer expressions to shape expressions over the dims, and bounds them.

The text consists of integers, names of dims, ``+ - * //``, parentheses, ``min`` and ``max``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tvm import tirx

from packager.bundle import shape_expr
from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.graph.dataflow import extents_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.ir.shapes import Extent

OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.Div: "//",
    tirx.FloorMod: "%",
    tirx.Mod: "%",
    tirx.Min: "min",
    tirx.Max: "max",
}
"""TVM operators -> shape expressions. Extents are not negative, so floor and truncating division are equal."""

# What holds of every name: a run-time extent may be 0.
_ANY_DIMS: Mapping[str, Dim] = defaultdict(lambda: Dim("", 0, 2**31 - 1))


def to_extent(expr: Any, names: Mapping[Any, Extent]) -> Extent:
    """Convert ``expr`` to an integer, or to text over the dims.

    ``names`` maps shape variables to dims or expressions over dims. Raises ModelError for a data-dependent expression.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, tirx.Cast):
        return to_extent(expr.value, names)
    if isinstance(expr, tirx.Var):
        if expr not in names:
            raise ModelError(
                f"a shape depends on {expr.name!r}, which is not a dim of an input",
                hint="data-dependent shapes are not supported",
            )
        return names[expr]
    if type(expr) in OPERATORS:
        return combine(OPERATORS[type(expr)], to_extent(expr.a, names), to_extent(expr.b, names))
    raise ModelError(f"a shape is computed by {expr}, which is not supported")


def to_expr(extent: Extent, names: Mapping[str, Any]) -> Any:
    """Convert an integer, or text over the dims, to an int64 expression: the opposite of ``to_extent``.

    ``names`` maps dims to expressions. Raises ShapeExpressionError.
    """
    functions = {"//": tirx.floordiv, "%": tirx.floormod, "min": tirx.min, "max": tirx.max}
    return shape_expr.fold(
        str(extent),
        lambda number: tirx.IntImm("int64", number),
        names.__getitem__,
        lambda operator, a, b: functions.get(operator, shape_expr.OPERATORS[operator])(a, b),
        limited=False,
    )


def _pick(function: str, left: Extent, right: Extent) -> Extent:
    """Return the minimum or maximum, simplified if one operand always wins."""
    try:
        a, b = extent_interval(left, _ANY_DIMS), extent_interval(right, _ANY_DIMS)
    except ModelError:  # one divides by a name, whose bounds only the caller knows
        return f"{function}({_text(left)}, {_text(right)})"
    if a[1] <= b[0]:
        return left if function == "min" else right
    if b[1] <= a[0]:
        return right if function == "min" else left
    return f"{function}({_text(left)}, {_text(right)})"


def combine(operator: str, left: Extent, right: Extent) -> Extent:
    """Return ``left operator right`` (one of ``shape_expr.OPERATORS``), constant-folded."""
    if operator in ("min", "max"):
        return _pick(operator, left, right)
    if operator in ("//", "%") and right == 0:
        raise ModelError("a shape is divided by zero")
    if isinstance(left, int) and isinstance(right, int):
        return int(shape_expr.OPERATORS[operator](left, right))
    if operator == "+" and isinstance(left, int):
        left, right = right, left
    if operator in ("+", "-") and isinstance(right, int) and right < 0:
        operator, right = "-" if operator == "+" else "+", -right
    if (operator in ("*", "//") and right == 1) or (operator in ("+", "-") and right == 0):
        return left
    if (operator == "*" and left == 1) or (operator == "+" and left == 0):
        return right
    return f"{_wrap(left)} {operator} {_wrap(right)}"


def _text(extent: Extent) -> str:
    """Return an operand's text. ``shape_expr`` has no negative literals, so -3 is ``0 - 3``."""
    return f"0 - {-extent}" if isinstance(extent, int) and extent < 0 else str(extent)


def _wrap(extent: Extent) -> str:
    text = _text(extent)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def is_readable(extent: Extent) -> bool:
    """Tell whether a manifest may have an extent: its text is limited in length and depth."""
    if isinstance(extent, int):
        return True
    try:
        shape_expr.names(extent)
    except shape_expr.ShapeExpressionError:
        return False
    return True


def names_of(extent: Extent) -> frozenset[str]:
    """Return the names of the dims and run-time extents in an extent."""
    if isinstance(extent, int):
        return frozenset()
    none: frozenset[str] = frozenset()
    return shape_expr.fold(
        extent, lambda _: none, lambda name: frozenset((name,)), lambda _, a, b: a | b, limited=False
    )


def product(extents: tuple[Extent, ...]) -> Extent:
    """Return the product of extents."""
    result: Extent = 1
    for extent in extents:
        result = combine("*", result, extent)
    return result


def shape_variables(tensors: Iterable[Any]) -> list[Any]:
    """Return the variables that are extents of Relax tensors by themselves, in order of their first use."""
    shapes = (extents_of(tensor) or () for tensor in tensors)
    return list(IdentitySet(extent for shape in shapes for extent in shape if isinstance(extent, tirx.Var)))


def bounded_dims(
    variables: Sequence[Any], bounds: Sequence[tuple[int, int]]
) -> tuple[IdentityMap[Extent], dict[str, Dim]]:
    """Return names for variables, and dims of these names with the variables' least and greatest values."""
    dims = {f"v{place}": Dim(f"v{place}", low, high) for place, (low, high) in enumerate(bounds)}
    return IdentityMap(zip(variables, dims, strict=True)), dims


def maximum(expr: Any, names: Mapping[Any, Extent], dims: Mapping[str, Dim]) -> int:
    """Return an upper bound of a ``tirx`` expression over the bounds of the dims."""
    return extent_interval(to_extent(expr, names), dims)[1]


def most_elements(extents: Sequence[Any], parameters: Sequence[Any], bounds: Sequence[tuple[int, int]]) -> int:
    """Return an upper bound of a product of extents over the bounds of the variables of a partition's parameters."""
    names, dims = bounded_dims(shape_variables(parameters), bounds)
    return math.prod(maximum(extent, names, dims) for extent in extents)


def extent_interval(extent: Extent, dims: Mapping[str, Dim]) -> tuple[int, int]:
    """Return bounds of an extent by interval arithmetic."""
    if isinstance(extent, int):
        return extent, extent
    try:
        return shape_expr.interval(extent, lambda name: (dims[name].min, dims[name].max), limited=False)
    except shape_expr.ShapeExpressionError as error:
        raise ModelError(str(error)) from None


def room(extent: Extent, bounds: Mapping[str, tuple[Extent, Extent]], dims: Mapping[str, Dim]) -> Extent:
    """Return an upper bound of an extent over some names, as an extent over the others.

    ``bounds`` are those of the names, over the others; ``dims`` the bounds of all in numbers.
    """
    if isinstance(extent, int):
        return extent
    most = extent_interval(extent, dims)[1]

    def bound_of(operator: str, a: tuple[Extent, Extent], b: tuple[Extent, Extent]) -> tuple[Extent, Extent]:
        if operator in ("+", "min", "max"):
            return combine(operator, a[0], b[0]), combine(operator, a[1], b[1])
        if operator == "-":
            return combine("-", a[0], b[1]), combine("-", a[1], b[0])
        signs = [extent_interval(side, dims)[0] for side in (*a, *b)]
        if operator == "*" and min(signs) >= 0:
            return combine("*", a[0], b[0]), combine("*", a[1], b[1])
        if operator == "//" and isinstance(b[0], int) and b[0] == b[1]:
            return combine("//", a[0], b[0]), combine("//", a[1], b[0])
        return 0, most

    def of_name(name: str) -> tuple[Extent, Extent]:
        return bounds.get(name, (name, name))

    return shape_expr.fold(extent, lambda n: (n, n), of_name, bound_of, limited=False)[1]

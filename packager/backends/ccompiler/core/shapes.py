"""Extents of tensors: integers, or TVM expressions over shape variables, their C, and how permutations change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from tvm import sym, tirx

from packager.codegen.c_text import c_integer, c_operation
from packager.graph.symbolic import OPERATORS

Extent = Any  # int, or tirx.PrimExpr
# The maximum of channel groups that an unrolled loop interleaves, and of channels of planes.
MOST_GROUPS = 16
_FORMS = {"//": "({} / {})", "min": "pk_min_i64({}, {})", "max": "pk_max_i64({}, {})"}  # extents are not negative


class Shape(tuple[Extent, ...]):
    """The extents of a tensor, static ones as Python's integers."""

    __slots__ = ()

    def __new__(cls, extents: Iterable[Extent]) -> Shape:
        """Make a shape of extents as TVM or this module gives them."""
        return super().__new__(cls, map(plain, extents))

    def __eq__(self, other: object) -> bool:
        """Whether two shapes are known to be equal."""
        return isinstance(other, Shape) and equal_shapes(self, other)

    def __ne__(self, other: object) -> bool:
        """Whether two shapes are not known to be equal."""
        return not self == other

    def __hash__(self) -> int:
        """Equal shapes have equal ranks."""
        return len(self)


def plain(extent: Extent) -> Extent:
    """Return a static extent as an integer, any other as an int64 expression."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, tirx.IntImm):
        return int(extent.value)
    simplified = sym.Analyzer().simplify(extent)
    return int(simplified.value) if isinstance(simplified, tirx.IntImm) else simplified


def equal(left: Extent, right: Extent) -> bool:
    """Whether two extents are known to be equal."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return bool(sym.Analyzer().can_prove_equal(_expr(left), _expr(right)))


def equal_shapes(left: Sequence[Extent], right: Sequence[Extent]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))


def product(extents: Iterable[Extent]) -> Extent:
    """Return the product of extents, 1 of none."""
    return reduce(lambda a, b: plain(a * b), extents, 1)


def ceil_div(extent: Extent, divisor: int) -> Extent:
    """Return an extent divided by ``divisor``, rounded up."""
    if isinstance(extent, int):
        return -(-extent // divisor)
    return plain(tirx.floordiv(extent + (divisor - 1), divisor))


def _expr(extent: Extent) -> Any:
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent


def c_text(extent: Extent) -> str:
    """Return an extent as a C expression of type int64_t, with shape variables named by ``c_name``."""
    if isinstance(extent, int | tirx.IntImm):
        return c_integer(int(extent))
    if isinstance(extent, tirx.Var):
        return c_name(extent)
    if isinstance(extent, tirx.Cast):
        return c_text(extent.value)
    if type(extent) in OPERATORS:
        return c_operation(OPERATORS[type(extent)], c_text(extent.a), c_text(extent.b), _FORMS)
    raise TypeError(f"an extent {extent} of type {type(extent).__name__}")


def c_name(variable: tirx.Var) -> str:
    """Return the name of a shape variable in C."""
    return "n_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in str(variable.name))


def interleaves(extents: Sequence[Extent], axes: Sequence[int]) -> bool:
    """Whether the last two axes are swapped, groups of channels and the channels of a group, and groups are few.

    ``extents`` are those of the source.
    """
    rank = len(axes)
    swapped = rank > 1 and list(axes) == [*range(rank - 2), rank - 1, rank - 2]
    static = swapped and all(isinstance(extent, int) for extent in extents[-2:])
    return static and 1 < extents[-2] <= MOST_GROUPS


def makes_channels_last(extents: Sequence[Extent], axes: Sequence[int]) -> bool:
    """Whether NCHW of few channels becomes NHWC. ``extents`` are those of the source."""
    return list(axes) == [0, 2, 3, 1] and isinstance(extents[1], int) and 1 <= extents[1] <= MOST_GROUPS

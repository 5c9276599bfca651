"""The rows of the data that a row of a resized result is a weighted sum of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packager.backends.ccompiler.core.expressions import literal
from packager.backends.ccompiler.core.functions import FunctionDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.resize_tables import ResizeTables
from packager.backends.ccompiler.core.shapes import Extent, c_text, product
from packager.bundle.arrays import Array


@dataclass(frozen=True)
class LineTerms:
    """What a row of the result adds up: tables of the axes before the last, rows of the data, and their sum at ``j``.

    ``exact`` if it is one row as it is. ``positions`` are those along the axes, the last first: what is left after
    each is of those before it.
    """

    axes: list[dict[str, Any]]
    exact: bool
    positions: list[tuple[int, str]]
    base: str
    terms: list[dict[str, str]]
    value: str


def line_terms(anchor: Operation, draft: FunctionDraft, count: int) -> LineTerms:
    """Return the terms along the first ``count`` resized axes, which are before the last axis."""
    tables: ResizeTables = anchor.attributes
    source, result = anchor.uses[0].shape, anchor.result.shape
    pointers = (draft.tensor(use.tensor, False) for use in anchor.uses[1:])
    pairs = enumerate(zip(tables.taps[:count], tables.arrays[:count], strict=True))
    axes = [_axis(number, taps, pair, pointers) for number, (taps, pair) in pairs]
    terms = list(itertools.product(*(range(axis["taps"]) for axis in axes)))
    exact = all(axis["taps"] == 1 for axis in axes)
    inner = len(result) - 1
    kept = [axis for axis in range(inner) if axis not in tables.axes]
    strides = [product(source[axis + 1 :]) for axis in range(inner)]

    def element(table: str, number: int, axis: int, tap: int) -> str:
        return f"{table}{number}[p{axis} * {axes[number]['taps']} + {tap}]"

    def along(term: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        return ((number, axis, tap) for number, (axis, tap) in enumerate(zip(tables.axes, term, strict=False)))

    return LineTerms(
        axes,
        exact,
        [(axis, c_text(result[axis])) for axis in reversed(range(inner))],
        _sum([(f"p{axis}", strides[axis]) for axis in kept]),
        [
            {
                "offset": _sum([(element("indices", n, axis, tap), strides[axis]) for n, axis, tap in along(term)]),
                "weight": " * ".join(element("weights", *place) for place in along(term)),
            }
            for term in terms
        ],
        "from0[j]" if exact else " + ".join(f"weight{term} * from{term}[j]" for term in range(len(terms))),
    )


def _axis(number: int, taps: int, pair: tuple[Array | None, Array | None], pointers: Iterator[str]) -> dict[str, Any]:
    """Return the tables of an axis as C initializers, or as pointers if they are operands."""
    indices, weights = pair
    return {
        "number": number,
        "taps": taps,
        "indices": None if indices is None else integers(indices),
        "indices_from": next(pointers) if indices is None else "",
        "weights": None if weights is None else floats(weights),
        "weights_from": next(pointers) if weights is None else "",
    }


def integers(array: Array) -> str:
    """Return the elements as C initializers."""
    return ", ".join(str(int(element)) for element in array.reshape(-1))


def floats(array: Array) -> str:
    """Return the elements as C initializers."""
    return ", ".join(literal(float(element), "float32") for element in array.reshape(-1))


def _sum(terms: list[tuple[str, Extent]]) -> str:
    return " + ".join(f"{text} * {c_text(stride)}" for text, stride in terms) or "0"

"""Resizing along any axes but the last: each row of the result is a weighted sum of rows of the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from packager.backends.ccompiler.core.expressions import as_result, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.resize_tables import ResizeTables
from packager.backends.ccompiler.core.shapes import Extent, c_text, product
from packager.backends.ccompiler.core.stages import Stage
from packager.bundle.arrays import Array


def add_resize(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    tables: ResizeTables = anchor.attributes
    source, result = anchor.uses[0].shape, anchor.result.shape
    draft = group.function("resize")
    pointers = (draft.tensor(use.tensor, False) for use in anchor.uses[1:])
    pairs = enumerate(zip(tables.taps, tables.arrays, strict=True))
    axes = [_axis(number, taps, pair, pointers) for number, (taps, pair) in pairs]
    terms = list(itertools.product(*(range(axis["taps"]) for axis in axes)))
    exact = all(axis["taps"] == 1 for axis in axes)
    value = "from0[j]" if exact else " + ".join(f"weight{term} * from{term}[j]" for term in range(len(terms)))
    inner = len(result) - 1
    kept = [axis for axis in range(inner) if axis not in tables.axes]
    strides = [product(source[axis + 1 :]) for axis in range(inner)]
    draft.finish(
        "ops/resize",
        stage.rows,
        {
            "program": draft.program(stage, as_result(f"({value})", anchor.result.dtype)),
            "x": draft.tensor(anchor.uses[0].tensor, False),
            "inner": c_text(stage.inner),
            "tables": axes,
            "exact": exact,
            # Positions along the axes, the last first: what is left after each is of those before it.
            "positions": [(axis, c_text(result[axis])) for axis in reversed(range(inner))],
            "base": _sum([(f"p{axis}", strides[axis]) for axis in kept]),
            "terms": [
                {
                    "offset": _sum(
                        [
                            (f"indices{number}[p{axis} * {axes[number]['taps']} + {tap}]", strides[axis])
                            for number, (axis, tap) in enumerate(zip(tables.axes, term, strict=True))
                        ]
                    ),
                    "weight": " * ".join(
                        f"weights{number}[p{axis} * {axes[number]['taps']} + {tap}]"
                        for number, (axis, tap) in enumerate(zip(tables.axes, term, strict=True))
                    ),
                }
                for term in terms
            ],
        },
    )


def _axis(number: int, taps: int, pair: tuple[Array | None, Array | None], pointers: Iterator[str]) -> dict[str, Any]:
    """Return the tables of an axis as C initializers, or as pointers if they are operands."""
    indices, weights = pair
    return {
        "number": number,
        "taps": taps,
        "indices": None if indices is None else ", ".join(str(int(index)) for index in indices.reshape(-1)),
        "indices_from": next(pointers) if indices is None else "",
        "weights": None if weights is None else ", ".join(literal(float(w), "float32") for w in weights.reshape(-1)),
        "weights_from": next(pointers) if weights is None else "",
    }


def _sum(terms: list[tuple[str, Extent]]) -> str:
    return " + ".join(f"{text} * {c_text(stride)}" for text, stride in terms) or "0"

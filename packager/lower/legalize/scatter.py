"""Lower scatters for CPUs: rows of contiguous elements, one after the other, in bands of columns that run in parallel.

An element gets its updates in the order of the indices, whatever the number of threads: results are always the same.
Where indices are broadcast along the columns, as by graph nets that add up rows by index, a row has one index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_rows, int64, numbers

# Columns of a band, at least, and bands of a row, at most: each reads all indices.
BAND, MOST_BANDS = 32, 16

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


@dataclass(frozen=True)
class _Scatter:
    """Updates ``[outer, number, columns]`` of data ``[outer, places, columns]``; extents may be symbolic.

    ``place(indices, row, column)`` returns where an element of row ``outer * number`` goes, from the flat indices. It
    is the same for all columns if ``by_row``.
    """

    outer: Any
    number: Any
    places: Any
    columns: Any
    by_row: bool
    place: Callable[[Any, Any, Any], Any]

    @property
    def bands(self) -> int:
        """Bands of equal width: one if columns are few or symbolic, or if slices are many."""
        if not isinstance(self.columns, int) or (isinstance(self.outer, int) and self.outer >= MOST_BANDS):
            return 1
        most = min(MOST_BANDS, self.columns // BAND)
        return next((count for count in range(most, 1, -1) if self.columns % count == 0), 1)


def legalize_scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``scatter_elements``."""
    return _along_axis(builder, call, int(call.attrs.axis), str(call.attrs.reduction))


def legalize_scatter_slices(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.scatter_slices``."""
    return _along_axis(builder, call, int(call.attrs["axis"]), str(call.attrs["reduction"]))


def _along_axis(builder: relax.BlockBuilder, call: relax.Call, axis: int, reduction: str) -> relax.Expr:
    def plan(shape: Sequence[Any], counts: Sequence[Any]) -> _Scatter:
        at = axis % len(shape)
        columns, by_row = math.prod(shape[at + 1 :]), math.prod(counts[at + 1 :]) == 1

        def place(indices: Any, row: Any, column: Any) -> Any:
            return inside(indices[row if by_row else row * columns + column], shape[at])

        return _Scatter(math.prod(shape[:at]), counts[at], shape[at], columns, by_row, place)

    return _emit(builder, call, plan, REDUCTIONS[reduction])


def legalize_scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``scatter_nd``."""

    def plan(shape: Sequence[Any], counts: Sequence[Any]) -> _Scatter:
        *outer, depth = counts

        def place(indices: Any, row: Any, _column: Any) -> Any:
            found = tirx.const(0, "int64")
            for number, extent in enumerate(shape[:depth]):
                found = found * extent + inside(indices[row * depth + number], extent)
            return found

        return _Scatter(1, math.prod(outer), math.prod(shape[:depth]), math.prod(shape[depth:]), True, place)

    return _emit(builder, call, plan, REDUCTIONS[str(call.attrs.reduction)])


def _emit(
    builder: relax.BlockBuilder,
    call: relax.Call,
    plan: Callable[[Sequence[Any], Sequence[Any]], _Scatter],
    combine: Callable[[Any, Any], Any],
) -> Any:
    """Emit the function; ``plan`` gets the shapes of data and indices."""

    def scatter_band(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        data, indices, updates, result = buffers
        scatter = plan(*map(numbers, given[:2]))
        number, places, columns = map(int64, (scatter.number, scatter.places, scatter.columns))
        bands = scatter.bands
        band = tirx.indexdiv(columns, bands)
        which = T.bind(tirx.indexdiv(row, bands))
        first = T.bind(tirx.indexmod(row, bands) * band)
        start = T.bind(which * (places * columns) + first)
        if bands == 1:
            with T.serial(0, places * columns) as i:
                result[start + i] = data[start + i]
        else:
            with T.serial(0, places) as i, T.serial(0, band) as j:
                result[start + i * columns + j] = data[start + i * columns + j]
        with T.serial(0, number) as k:
            source = T.bind(which * number + k)
            update = T.bind(source * columns + first)
            if scatter.by_row:
                target = T.bind(start + scatter.place(indices, source, first) * columns)
                with T.serial(0, band) as j:
                    result[target + j] = combine(result[target + j], updates[update + j])
            else:
                with T.serial(0, band) as j:
                    target = T.bind(start + scatter.place(indices, source, first + j) * columns + j)
                    result[target] = combine(result[target], updates[update + j])

    def shapes(data: Any, indices: Any, _updates: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        scatter = plan(numbers(data.shape), numbers(indices.shape))
        return int64(scatter.outer) * scatter.bands, [(list(data.shape), str(data.dtype))]

    name = call.op.name.rpartition(".")[2]
    return emit_rows(builder, name, [*call.args], shapes, scatter_band)[0]


def inside(index: Any, extent: Any, dtype: str = "int64") -> Any:
    """Return an index from 0 on, of a type: a negative one counts from the end, and none is outside."""
    wide, end = index.astype(dtype), int64(extent).astype(dtype)
    wide = tirx.Select(wide < 0, wide + end, wide)
    return tirx.max(tirx.min(wide, end - 1), tirx.const(0, dtype))

"""Lower TopK for CPUs: ranking by comparison, insertion into a sorted list, or sorting.

Ties are in index order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_rows, emit_sequential

# Up to this extent, ranking by comparing all pairs is as fast as sorting.
MAX_RANKED = 1024
# Pairs that ranking compares in the time of a step of insertion: vectors of indices.
COMPARED = 4
# Up to this number of results, insertion is as fast as sorting in whatever order the elements are.
MAX_INSERTED = 64


@dataclass(frozen=True)
class _Top:
    """The ``k`` best of ``number`` elements of each row of ``data``."""

    builder: relax.BlockBuilder
    data: Any
    k: Any
    largest: bool

    def better(self, a: Any, b: Any) -> Any:
        """Tell whether an element comes before another; NaN is greater than all numbers, as in torch and numpy."""
        greater, less = (a, b) if self.largest else (b, a)
        if not str(self.data.ty.dtype).startswith(("float", "bfloat")):
            return greater > less
        return tirx.any(greater > less, tirx.all(tirx.isnan(greater), tirx.Not(tirx.isnan(less))))

    @property
    def rows(self) -> Any:
        return self.data.ty.shape.values[0]

    @property
    def number(self) -> Any:
        return self.data.ty.shape.values[1]

    @property
    def results(self) -> list[tuple[list[Any], str]]:
        shape = [self.rows, self.k]
        return [(shape, str(self.data.ty.dtype)), (shape, "int64")]


def legalize_top_k(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.top_k``."""
    top = _Top(builder, call.args[0], call.args[1].values[0], bool(int(call.attrs["largest"])))
    if not isinstance(top.k, tirx.IntImm) or not isinstance(top.number, tirx.IntImm):
        return relax.Tuple(_by_merging(top))
    number, k = int(top.number), int(top.k)
    if k <= MAX_INSERTED and (number > MAX_RANKED or _steps_of_insertion(number, k) < number * number / COMPARED):
        return relax.Tuple(_by_insertion(top))
    return relax.Tuple(_by_rank(top) if number <= MAX_RANKED else _by_merging(top))


def _steps_of_insertion(number: int, k: int) -> float:
    """Return about how many elements are compared or shifted, if they are in random order: the i-th of them is among
    the ``k`` best so far with a probability of ``k / i``."""
    inserted = k * (1 + math.log(max(1.0, number / max(1, k))))
    return number + inserted * k / 2


def _by_rank(top: _Top) -> list[Any]:
    """Compute the rank of each element, then invert the permutation."""
    other, mine = (te.reduce_axis((0, int(top.number)), name=name) for name in ("other", "mine"))
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def compute(x: Any) -> list[Any]:
        def rank_of(*i: Any) -> Any:
            left, right = x(*i[:-1], other), x(*i)
            first = tirx.any(top.better(left, right), tirx.all(tirx.Not(top.better(right, left)), other < i[-1]))
            return te.sum(tirx.Select(first, one, zero), axis=other)

        def place(*i: Any) -> Any:
            here = ranks(*i[:-1], mine) == i[-1].astype("int64")
            return te.sum(tirx.Select(here, mine.astype("int64"), zero), axis=mine)

        ranks = te.compute(x.shape, rank_of, name="ranks")
        shape = [*x.shape[:-1], top.k]
        indices = te.compute(shape, place, name="places")
        values = te.compute(shape, lambda *i: x(*i[:-1], tirx.min(indices(*i), top.number - 1)), name="values")
        return [values, indices]

    result = top.builder.emit(top.builder.call_te(compute, top.data, primfunc_name_hint="top_k"))
    return [top.builder.emit(relax.TupleGetItem(result, part)) for part in range(2)]


def _by_insertion(top: _Top) -> list[Any]:
    """Insert each element into a sorted list of the best ones; rows in parallel."""
    number, k = int(top.number), int(top.k)
    one = tirx.const(1, "int64")

    def insert_all(buffers: Sequence[Any], _shapes: Sequence[Any], row: Any) -> None:
        source, values, indices, places = buffers
        base = row * k
        with T.serial(0, number) as i:
            new, last = source[row * number + i], tirx.min(i, k - 1).astype("int64")
            with T.If(tirx.any(i < k, top.better(new, values[base + (k - 1)]))), T.Then():
                # From the end of the list to its start: shift worse elements to make room.
                places[row] = last
                before = tirx.max(places[row] - one, tirx.const(0, "int64"))
                with T.While(tirx.all(places[row] > 0, top.better(new, values[base + before]))):
                    values[base + places[row]] = values[base + places[row] - one]
                    indices[base + places[row]] = indices[base + places[row] - one]
                    places[row] = places[row] - one
                values[base + places[row]] = new
                indices[base + places[row]] = i.astype("int64")

    def shapes(data: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        return data.shape[0], [*top.results, ([data.shape[0]], "int64")]

    return emit_rows(top.builder, "top_k", [top.data], shapes, insert_all)[:2]


def _by_merging(top: _Top) -> list[Any]:
    """Sort indices by merging runs of 1, 2, 4, ... elements, and take the first."""
    one, size, k = tirx.const(1, "int64"), top.number, top.k

    def merge_all(
        source: Any, values: Any, indices: Any, order: Any, merged: Any, width: Any, left: Any, right: Any
    ) -> None:
        def element(row: Any, place: Any) -> Any:
            return source[row * size + order[tirx.min(place, size - 1)]]

        def merge(row: Any, at: Any) -> None:
            first = at - tirx.truncmod(at, width[0] * 2)
            middle, end = tirx.min(first + width[0], size), tirx.min(first + width[0] * 2, size)
            with T.If(at == first), T.Then():
                left[0] = first
                right[0] = middle
            ahead = top.better(element(row, right[0]), element(row, left[0]))
            with T.If(tirx.any(left[0] >= middle, tirx.all(right[0] < end, ahead))):
                with T.Then():
                    merged[at] = order[right[0]]
                    right[0] = right[0] + one
                with T.Else():
                    merged[at] = order[left[0]]
                    left[0] = left[0] + one

        with T.serial(0, top.rows) as row:
            with T.serial(0, size) as i:
                order[i] = i
            width[0] = one
            with T.While(width[0] < size):
                with T.serial(0, size) as at:
                    merge(row, at)
                with T.serial(0, size) as i:
                    order[i] = merged[i]
                width[0] = width[0] * 2
            with T.serial(0, k) as i:
                values[row * k + i] = element(row, i)
                indices[row * k + i] = order[tirx.min(i, size - 1)]

    single = ((1,), "int64")
    lists = [((size,), "int64")] * 2
    return emit_sequential(top.builder, "top_k", [top.data], [*top.results, *lists, single, single, single], merge_all)[
        :2
    ]

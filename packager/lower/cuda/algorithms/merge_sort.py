"""Sorts rows in parallel: tiles by the rank of each element, then runs of twice the length in each pass.

An element of a merged run finds its origin by binary search along the merge path (Odeh, Green, Mwassi, Shmueli, Birk:
"Merge Path - Parallel Merging Made Simple", 2012), so that all are independent. The order is stable. Runs hold the
first ``k`` elements only, where no more are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, cast, ceil_div, int64, keep, least, local

TILE = 128


class Order(Protocol):
    """An order of the elements of rows, by what is sorted along with their indices."""

    @property
    def dtype(self) -> str:
        """The type of what is sorted."""

    def key(self, row: Any, index: Any) -> Any:
        """Return what is sorted of an element."""

    def precedes(self, row: Any, a: Any, b: Any) -> Any:
        """Tell whether the element of key ``a`` comes before that of ``b``; neither does if they are equal."""


@dataclass(frozen=True)
class ByKey:
    """Elements in the order of integers, or in the opposite one."""

    dtype: str
    key_at: Callable[[Any, Any], Any]
    largest_first: bool

    def key(self, row: Any, index: Any) -> Any:
        """Return the integer."""
        return self.key_at(row, index)

    def precedes(self, _row: Any, a: Any, b: Any) -> Any:
        """Compare two integers."""
        return a > b if self.largest_first else a < b


@dataclass(frozen=True)
class Sorted:
    """The first ``k`` elements of rows: ``keys`` and ``indices`` (int32) are flat, ``k`` elements for each row."""

    keys: Any
    indices: Any
    k: Any


@dataclass(frozen=True)
class _Runs:
    """Sorted runs of ``length`` elements, of which the first ``kept`` are held: [rows, number, kept], flat."""

    keys: Any
    indices: Any
    length: int
    kept: Any
    number: Any

    def base(self, row: Any, run: Any) -> Any:
        return (row * self.number + run) * self.kept

    def elements(self, run: Any, size: Any) -> Any:
        """Return how many elements a run holds, of rows of ``size``; 0 for one behind the last."""
        rest = tirx.max(size - run * self.length, int64(0))
        return tirx.min(self.kept, rest)


def merge_sort(nests: Nests, rows: Any, size: Any, k: Any, most: int, order: Order) -> Sorted:
    """Write the nests that sort rows of ``size`` elements, which are ``most`` at most, and keep the first ``k``."""
    rows, size, k = int64(rows), int64(size), int64(k)
    # All runs of a row together hold less than the row and one more run.
    room = rows * size if most <= TILE else rows * size * 2
    rooms = [(nests.workspace([room], order.dtype), nests.workspace([room], "int32")) for _ in range(1 + (most > TILE))]
    runs = _runs(rooms[0], size, k, TILE)
    _sort_tiles(nests, rows, size, order, runs)
    for number in range(1, 64):
        if runs.length >= most:
            break
        merged = _runs(rooms[number % 2], size, k, 2 * runs.length)
        _merge(nests, rows, size, order, runs, merged)
        runs = merged
    return Sorted(runs.keys, runs.indices, runs.kept)


def _runs(room: tuple[Any, Any], size: Any, k: Any, length: int) -> _Runs:
    return _Runs(*room, length, least(least(int64(length), k), size), ceil_div(size, length))


def _sort_tiles(nests: Nests, rows: Any, size: Any, order: Order, runs: _Runs) -> None:
    with nests.grid("sort_tiles", rows, size) as (row, place):
        tile = keep(tirx.truncdiv(place, int64(TILE)))
        first = keep(tile * TILE)
        base = keep(runs.base(row, tile))
        key = local(order.key(row, place))
        rank = local(int64(0))
        with T.serial(int64(0), int64(TILE)) as step, T.If(first + step < size), T.Then():
            other = keep(order.key(row, first + step))
            ahead, behind = order.precedes(row, other, key[0]), order.precedes(row, key[0], other)
            before = tirx.any(ahead, tirx.all(tirx.Not(behind), first + step < place))
            rank[0] = rank[0] + tirx.Select(before, int64(1), int64(0))
        with T.If(rank[0] < runs.kept), T.Then():
            runs.keys[base + rank[0]] = key[0]
            runs.indices[base + rank[0]] = cast(place, "int32")


def _merge(nests: Nests, rows: Any, size: Any, order: Order, runs: _Runs, merged: _Runs) -> None:
    with nests.grid("merge", rows, merged.number, merged.kept) as (row, run, place):
        left, right = keep(runs.base(row, run * 2)), keep(runs.base(row, run * 2 + 1))
        ours, theirs = keep(runs.elements(run * 2, size)), keep(runs.elements(run * 2 + 1, size))
        with T.If(place < ours + theirs), T.Then():
            # How many of the first `place` elements are from the left run.
            low, high = local(tirx.max(place - theirs, int64(0))), local(tirx.min(place, ours))
            with T.While(low[0] < high[0]):
                middle = keep((low[0] + high[0]) >> int64(1))
                ahead = order.precedes(row, runs.keys[right + place - middle - 1], runs.keys[left + middle])
                with T.If(ahead):
                    with T.Then():
                        high[0] = middle
                    with T.Else():
                        low[0] = middle + 1
            source, other = local(left + low[0]), keep(right + place - low[0])
            with T.If(low[0] >= ours):
                with T.Then():
                    source[0] = other
                with T.Else(), T.If(place - low[0] < theirs), T.Then():
                    ahead = order.precedes(row, runs.keys[other], runs.keys[source[0]])
                    with T.If(ahead), T.Then():
                        source[0] = other
            target = keep(merged.base(row, run) + place)
            merged.keys[target] = runs.keys[source[0]]
            merged.indices[target] = runs.indices[source[0]]

"""Sorts rows in parallel: tiles in shared memory, then several runs are merged in each pass.

Tiles are sorted by networks, or, where there are few, by the rank of each element, for which no thread waits.

An element of a merged run finds its rank by binary search in the others, so that all are independent. The order is
stable. Runs hold the first ``k`` elements only, where no more are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import (
    Nests,
    cast,
    ceil_div,
    int32,
    int64,
    keep,
    least,
    local,
    locals_of,
    shared,
    simplified,
)

# Slots of a thread block, of one tile or of several; with at most so many tiles each has a block of its own.
SLOTS, FEW_TILES = 512, 128
# Comparisons of all elements of tiles with those of theirs, up to which ranks take less time than networks' barriers.
MOST_COMPARISONS = 1 << 25
# Runs that are merged at a time.
TOGETHER = 8
# The index of a slot without an element.
NONE = 2**31 - 1


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
    """The first ``k`` elements of rows: ``keys`` and ``indices`` (int32) are flat, ``k`` elements for each row.

    There may be no keys: see merge_sort.
    """

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


def merge_sort(
    nests: Nests, rows: Any, size: Any, k: Any, most: int, order: Order, *, with_keys: bool = True, into: Any = None
) -> Sorted:
    """Write the nests that sort rows of ``size`` elements, which are ``most`` at most, and keep the first ``k``.

    Their keys are written only if asked for, their indices ``into`` a flat buffer if there is one.
    """
    rows, size, k = int64(rows), int64(size), int64(k)
    lengths = [min(SLOTS, 1 << max(most - 1, 1).bit_length())]
    while lengths[-1] < most:
        lengths.append(lengths[-1] * min(TOGETHER, -(-most // lengths[-1])))
    # All runs of a row together hold less than the row and one more run.
    room = rows * size * min(len(lengths), 2)
    rooms = [(nests.workspace([room], order.dtype), nests.workspace([room], "int32")) for _ in lengths[:2]]
    passes = []
    for number, length in enumerate(lengths):
        keys, indices = rooms[number % 2]
        if number == len(lengths) - 1:
            keys, indices = keys if with_keys else None, indices if into is None else into
        kept = least(least(int64(length), k), size)
        passes.append(_Runs(keys, indices, length, kept, ceil_div(size, length)))
    tiles = simplified(rows * passes[0].number)
    few = isinstance(tiles, tirx.IntImm) and int(tiles) * lengths[0] ** 2 <= MOST_COMPARISONS
    (_rank_tiles if few else _sort_tiles)(nests, rows, size, order, passes[0])
    for runs, merged in itertools.pairwise(passes):
        _merge(nests, rows, size, order, runs, merged)
    return Sorted(passes[-1].keys, passes[-1].indices, passes[-1].kept)


def _sort_tiles(nests: Nests, rows: Any, size: Any, order: Order, runs: _Runs) -> None:
    """Write the nest that sorts tiles in shared memory by bitonic networks (Batcher: "Sorting networks", 1968).

    A slot without an element has no index, and comes last.
    """
    length, tiles = runs.length, simplified(rows * runs.number)
    together = 1 if isinstance(tiles, tirx.IntImm) and int(tiles) <= FEW_TILES else SLOTS // length
    with nests.rows("sort_tiles", ceil_div(tiles, together)) as block:
        keys, indices = shared([together * length], order.dtype), shared([together * length], "int32")
        pairs = int32(together * length // 2)

        def place_of(slot: Any) -> tuple[Any, Any, Any]:
            tile = keep(block * together + cast(slot // length, "int64"))
            return keep(tirx.truncdiv(tile, runs.number)), keep(tirx.truncmod(tile, runs.number)), keep(slot % length)

        with T.parallel(int32(0), pairs) as pair, T.serial(int32(0), int32(2)) as half:
            slot = keep(pair + half * pairs)
            row, tile, at = place_of(slot)
            place = keep(tile * length + cast(at, "int64"))
            keys[slot], indices[slot] = tirx.const(0, order.dtype), int32(NONE)
            with T.If(tirx.all(row < rows, place < size)), T.Then():
                keys[slot], indices[slot] = order.key(row, place), cast(place, "int32")
        levels = length.bit_length() - 1
        with T.serial(int32(0), int32(levels)) as level, T.serial(int32(0), level + 1) as step:
            loop = T.parallel(int32(0), pairs)
            with loop as pair:
                apart = keep(int32(1) << (level - step))
                left = keep(pair * 2 - (pair & (apart - 1)))
                row, _, at = place_of(left)
                a, b = local(keys[left]), local(keys[left + apart])
                i, j = local(indices[left]), local(indices[left + apart])
                ahead, behind = order.precedes(row, a[0], b[0]), order.precedes(row, b[0], a[0])
                tied = tirx.all(tirx.Not(behind), i[0] < j[0])
                in_order = tirx.all(i[0] != NONE, tirx.any(j[0] == NONE, ahead, tied))
                descends = (at >> (level + 1)) & 1
                with T.If(tirx.Select(in_order, int32(1), int32(0)) == descends), T.Then():
                    keys[left], keys[left + apart] = b[0], a[0]
                    indices[left], indices[left + apart] = j[0], i[0]
        with T.parallel(int32(0), pairs) as pair, T.serial(int32(0), int32(2)) as half:
            slot = keep(pair + half * pairs)
            row, tile, at = place_of(slot)
            index = keep(indices[slot])  # TVM reads shared memory in no condition
            with T.If(tirx.all(row < rows, index != NONE, cast(at, "int64") < runs.kept)), T.Then():
                target = keep(runs.base(row, tile) + cast(at, "int64"))
                runs.indices[target] = index
                if runs.keys is not None:
                    runs.keys[target] = keys[slot]


def _rank_tiles(nests: Nests, rows: Any, size: Any, order: Order, runs: _Runs) -> None:
    """Write the nest that finds how many elements of its tile come before each."""
    length = runs.length
    with nests.rows("rank_tiles", rows * runs.number) as block:
        keys = shared([length], order.dtype)

        def tile_of() -> tuple[Any, Any, Any, Any]:
            tile = keep(tirx.truncmod(block, runs.number))
            count = cast(tirx.min(size - tile * length, int64(length)), "int32")
            return keep(tirx.truncdiv(block, runs.number)), tile, keep(tile * length), keep(count)

        with T.parallel(int32(0), int32(length)) as slot:
            row, _, first, count = tile_of()
            keys[slot] = order.key(row, keep(first + cast(tirx.min(slot, count - 1), "int64")))
        with T.parallel(int32(0), int32(length)) as slot:
            row, tile, first, count = tile_of()
            own, rank = local(keys[slot]), local(int32(0))
            with T.serial(int32(0), count) as other:
                key = local(keys[other])
                ahead, behind = order.precedes(row, key[0], own[0]), order.precedes(row, own[0], key[0])
                is_before = tirx.Select(other < slot, tirx.Not(behind), ahead)
                rank[0] = rank[0] + tirx.Select(is_before, int32(1), int32(0))
            with T.If(tirx.all(slot < count, cast(rank[0], "int64") < runs.kept)), T.Then():
                target = keep(runs.base(row, tile) + cast(rank[0], "int64"))
                runs.indices[target] = cast(first, "int32") + slot
                if runs.keys is not None:
                    runs.keys[target] = own[0]


def _merge(nests: Nests, rows: Any, size: Any, order: Order, runs: _Runs, merged: _Runs) -> None:
    """Write the nest that merges ``merged.length / runs.length`` runs: the rank of each element in the others.

    All binary searches of an element go on at a time, so that it waits for their loads together.
    """
    together, steps = merged.length // runs.length, _most(runs.kept, runs.length).bit_length()
    with nests.grid("merge", rows, runs.number, runs.kept) as (row, run, place):
        is_element = place < runs.elements(run, size)
        with T.If(is_element), T.Then():
            source = keep(runs.base(row, run) + place)
            key, rank = local(runs.keys[source]), local(place)
            group = keep(tirx.truncdiv(run, int64(together)))
            base, count = locals_of(together, "int64"), locals_of(together, "int32")
            low, high, probe = (locals_of(together, kind) for kind in ("int32", "int32", order.dtype))
            for which in range(together):
                other = keep(tirx.min(group * together + which, runs.number - 1))
                is_other = tirx.all(group * together + which == other, other != run)
                base[which] = runs.base(row, other)
                count[which] = tirx.Select(is_other, cast(runs.elements(other, size), "int32"), int32(0))
                low[which], high[which] = int32(0), count[which]
            with T.serial(int32(0), int32(steps)):
                middle = [keep((low[which] + high[which]) >> 1) for which in range(together)]
                for which, at in enumerate(middle):
                    inside = tirx.max(tirx.min(at, count[which] - 1), int32(0))
                    probe[which] = runs.keys[base[which] + cast(inside, "int64")]
                for which, at in enumerate(middle):
                    ahead = order.precedes(row, probe[which], key[0])
                    tied = tirx.Not(order.precedes(row, key[0], probe[which]))
                    is_before = tirx.any(ahead, tirx.all(group * together + which < run, tied))
                    moves = keep(tirx.Select(is_before, int32(1), int32(0)))
                    is_open = low[which] < high[which]
                    with T.If(is_open), T.Then(), T.If(moves != 0):
                        with T.Then():
                            low[which] = at + 1
                        with T.Else():
                            high[which] = at
            for which in range(together):
                rank[0] = rank[0] + cast(low[which], "int64")
            with T.If(rank[0] < merged.kept), T.Then():
                target = keep(merged.base(row, group) + rank[0])
                merged.indices[target] = runs.indices[source]
                if merged.keys is not None:
                    merged.keys[target] = key[0]


def _most(extent: Any, most: int) -> int:
    """Return an upper bound of an extent that is ``most`` at most."""
    return min(int(extent), most) if isinstance(extent, tirx.IntImm) else most

"""Finds the few best elements of rows by ranks: how many elements are better than each, which no thread waits for.

None of the ``k`` best elements is in a group of adjacent elements unless the best of the group is among the ``k`` best
of all groups. So of long rows as many groups are found first, of groups of groups before; then the elements of those
are compared with each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.merge_sort import ByKey
from packager.lower.cuda.algorithms.nests import Nests, cast, int32, int64, keep, local, shared

# Types of keys that an index fits beside, in 64 bits.
SHORT_KEYS = ("int8", "uint8", "int16", "uint16", "int32")
# Elements of a block, each compared by several threads with a share of the others, which shared memory holds.
SLOTS, THREADS, MOST_RANKED = 32, 256, 4096
# Comparisons that take as long as a launch, and at most. A level of groups is two launches.
OF_LAUNCH, MOST_COMPARISONS, MOST_LEVELS = 1 << 23, 1 << 26, 4
LEAST_GROUP, MOST_GROUP = 4, 32

# (row, place) -> what is at a place of a row.
At = Callable[[Any, Any], Any]
# Writes the index of an element of a row, of which so many are better.
Write = Callable[[Any, Any, Any], None]


def levels_of(rows: Any, size: Any, k: Any, kind: str) -> list[int] | None:
    """Return how many elements or groups of each level are a group, or None if this is not how to find the ``k`` best.

    A level's groups are the elements of the next one; without any level, elements are ranked at once.
    """
    extents = (rows, size, k)
    if kind not in SHORT_KEYS or not all(isinstance(extent, tirx.IntImm) and int(extent) for extent in extents):
        return None
    (of_rows, elements, best), found = map(int, extents), []
    for levels in range(MOST_LEVELS):
        group = 1 << max(round(math.log2(elements / best) / (levels + 1)), 0)
        groups = [group] * levels
        last = _counts(elements, groups)[-1]
        ranked = [last, *[best * group] * levels]
        comparisons = of_rows * sum(count * count for count in ranked)
        fits = last >= best and max(ranked) <= MOST_RANKED and comparisons <= MOST_COMPARISONS
        if fits and (not levels or LEAST_GROUP <= group <= MOST_GROUP):
            found.append((comparisons / OF_LAUNCH + 2 * levels, groups))
    return min(found)[1] if found else None


def _counts(size: int, groups: list[int]) -> list[int]:
    """Return how many elements each level has, and how many groups the last one."""
    return [*itertools.accumulate(groups, lambda count, group: -(-count // group), initial=size)]


def few_best(nests: Nests, rows: Any, size: int, k: int, order: ByKey, groups: list[int], write: Write) -> None:
    """Write the nests that find the ``k`` best elements of rows; of equal elements the first ones are the best."""
    largest, counts = order.largest_first, _counts(size, groups)
    keys: list[At] = [order.key]
    for number, group in enumerate(groups):
        keys.append(_best_of_groups(nests, number, rows, counts[number : number + 2], keys[-1], order, group))
    chosen: Any = None
    for level in range(len(groups), -1, -1):
        of_group = groups[level] if level < len(groups) else 1
        index_of = _elements_of(chosen, k, of_group)
        kept = nests.workspace([rows * k], "int32") if level else None
        into = write if kept is None else _keeper(kept, k)
        ranked = counts[level] if chosen is None else k * of_group
        packed = _packed(index_of, keys[level], counts[level], largest=largest)
        _rank(nests, f"rank_{level}", rows, ranked, k, packed, index_of, into, largest=largest)
        chosen = kept


def _keeper(kept: Any, k: int) -> Write:
    def write(row: Any, rank: Any, index: Any) -> None:
        kept[row * k + cast(rank, "int64")] = cast(index, "int32")

    return write


def _elements_of(chosen: Any, k: int, group: int) -> At:
    """Return the index of an element of the chosen groups, by its place among them; the place if all are chosen."""
    if chosen is None:
        return lambda _, place: place

    def index(row: Any, place: Any) -> Any:
        which = keep(chosen[row * k + tirx.truncdiv(place, int64(group))])
        return keep(cast(which, "int64") * group + tirx.truncmod(place, int64(group)))

    return index


def _best_of_groups(nests: Nests, number: int, rows: Any, counts: list[int], key: At, order: ByKey, group: int) -> At:
    """Write the nest that finds the best key of each group; return it by row and group."""
    elements, groups = counts
    bests = nests.workspace([rows * groups], order.dtype)
    with nests.grid(f"best_of_groups_{number}", rows, groups) as (row, which):
        best = local(key(row, which * group))
        for other in range(1, group):
            own = keep(key(row, tirx.min(which * group + other, int64(elements - 1))))
            best[0] = tirx.Select(order.precedes(row, own, best[0]), own, best[0])
        bests[row * groups + which] = best[0]
    return lambda row, which: bests[row * groups + which]


def _last(*, largest: bool) -> Any:
    """Return what no element's key and index in 64 bits come after."""
    return tirx.const(-(2**63) if largest else 2**63 - 1, "int64")


def _packed(index_of: At, key: At, count: int, *, largest: bool) -> At:
    """Return key and index of an element in 64 bits, as which no two are equal; one behind the last is the last."""

    def packed(row: Any, place: Any) -> Any:
        index = index_of(row, place)
        high = keep(cast(key(row, tirx.min(index, int64(count - 1))), "int64") << int64(32))
        both = high + (int64(2**31 - 1) - index if largest else index)
        return tirx.Select(index < count, both, _last(largest=largest))

    return packed


def _rank(
    nests: Nests, name: str, rows: Any, count: int, k: int, packed: At, index_of: At, write: Write, *, largest: bool
) -> None:
    """Write the nest that ranks ``count`` elements of rows, of which those of ranks below ``k`` are written."""
    shares = THREADS // SLOTS
    parts, share = -(-count // SLOTS), -(-count // shares)
    with nests.rows(name, rows * parts) as block:
        keys, ranks = shared([shares * share], "int64"), shared([THREADS], "int32")

        def place_of(slot: Any) -> tuple[Any, Any]:
            return keep(tirx.truncdiv(block, parts)), keep(tirx.truncmod(block, parts) * SLOTS + cast(slot, "int64"))

        turns = int32(-(-shares * share // THREADS))
        with T.parallel(int32(0), int32(THREADS)) as thread, T.serial(int32(0), turns) as turn:
            at = keep(turn * THREADS + thread)
            row, _ = place_of(thread)
            with T.If(at < shares * share), T.Then():
                place = keep(tirx.min(cast(at, "int64"), int64(count - 1)))
                keys[at] = tirx.Select(at < count, keep(packed(row, place)), _last(largest=largest))
        with T.parallel(int32(0), int32(THREADS)) as thread:
            _, place = place_of(thread & (SLOTS - 1))
            own = local(keys[cast(tirx.min(place, int64(count - 1)), "int32")])
            first, rank = keep((thread // SLOTS) * share), local(int32(0))
            with T.serial(int32(0), int32(share)) as other:
                key = local(keys[first + other])
                is_before = key[0] > own[0] if largest else key[0] < own[0]
                rank[0] = rank[0] + tirx.Select(is_before, int32(1), int32(0))
            ranks[thread] = rank[0]
        with T.parallel(int32(0), int32(SLOTS)) as slot:
            row, place = place_of(slot)
            rank = local(int32(0))
            for number in range(shares):
                rank[0] = rank[0] + ranks[number * SLOTS + slot]
            with T.If(tirx.all(place < count, rank[0] < k)), T.Then():
                write(row, rank[0], index_of(row, place))

"""The tiles of column reductions: how many columns a thread accumulates, and how many threads share their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx

from packager.graph.identity import IdentitySet
from packager.lower.blocks import MAX_WIDE_BYTES, VECTOR_BYTES, itemsize, loads

WARP = 32
# Rows that are worth sharing.
MANY = 64
# Threads of a GPU that is busy; with fewer, the rows of a tile of columns are split over threads.
BUSY = 1 << 15
# Tiles that give each multiprocessor one, if the columns are as many.
TILES = 128
# The most vectors of columns that such a tile has.
MAX_TILE = 64
# Bytes that a tile should have of a row: less is part of what memory transfers at once.
SECTOR = 32
# Fewer columns make no tile.
FEW_COLUMNS = 32


def joined_axes(kept: list[Any], length: int) -> int:
    """Return how many of the last axes are one axis of columns: several where the last alone is a few vectors."""
    count, columns = 1, kept[-1]
    while length >= MANY // 2 and isinstance(columns, int) and columns < FEW_COLUMNS and count < len(kept):
        before = kept[-1 - count]
        if not isinstance(before, int):
            break
        columns, count = columns * before, count + 1
    return count


def narrow_tile(kept: list[Any], length: int, width: int, axes: Sequence[int]) -> tuple[int, int] | None:
    """Return how many vectors of columns a block has, and how many threads share each, if few threads would have one.

    None where there are many columns or few rows, or where nothing divides the rows. Symbolic extents may be large: a
    block has no fewer vectors for them than it can. The last axis that is kept is a joint one of ``axes``.
    """
    *outer, last = (extent if isinstance(extent, int) else 0 for extent in kept)
    vectors, others = last // width, math.prod(outer)
    if length < MANY // 2 or not vectors or vectors * others > BUSY:
        return None
    widths = range(min(vectors, MAX_TILE), min(vectors, SECTOR // VECTOR_BYTES) - 1, -1)
    sizes = [size for size in widths if not vectors % size and _is_tile(size * width, axes)]
    if not sizes:
        return None
    size = next((size for size in sizes if not others or others * (vectors // size) >= TILES), sizes[-1])
    sharers = next((count for count in (width, width // 2, width // 4) if count > 1 and not length % count), 0)
    return (size, sharers) if sharers and (others or size * sharers >= WARP) else None


def _is_tile(columns: int, axes: Sequence[int]) -> bool:
    """Whether tiles of so many columns of a joint axis are parts of one of ``axes`` and all of at most one other.

    TVM knows which columns a thread has from quotients and remainders of one axis only.
    """
    spans = [math.prod(axes[place:]) for place in range(1, len(axes))]
    whole = [not columns % span for span in spans if span < columns]
    return all(whole) and len(whole) <= 1 and all(not span % columns for span in spans if span >= columns)


def width_of(sch: s_tir.Schedule, reduction: Any, extent: Any) -> int:
    """Return how many columns a thread accumulates: a full vector of the narrowest operand."""
    if not (operands := contiguous_operands(sch, reduction)) or not isinstance(extent, int):
        return 1
    rows = [getattr(buffer.shape[-1], "value", 1) for buffer in operands]  # of which it may read a part
    sizes = [itemsize(buffer) for buffer in operands]
    most = max(*sizes, itemsize(sch.get(reduction).writes[0].source))
    width = min(VECTOR_BYTES // min(sizes), MAX_WIDE_BYTES // most)
    while any(length % width for length in (extent, *rows)):
        width //= 2
    return width


def contiguous_operands(sch: s_tir.Schedule, reduction: Any) -> list[Any]:
    """Return the parameters whose last index is the innermost axis that the reduction keeps, but no gathered ones."""
    kept = [v for v in sch.get(reduction).iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if not kept:
        return []
    reads = [load for load in loads(sch.get(reduction).body) if load.source.scope() == "global" and load.indices]
    placed = [load for load in reads if not any(loads(index) for index in load.indices)]
    return list(IdentitySet(load.source for load in placed if load.indices[-1].same_as(kept[-1].var)))

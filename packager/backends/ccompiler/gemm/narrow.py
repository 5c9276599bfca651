"""Convolutions of groups of few channels, 16 columns of several groups at once, each with those of its own group.

As one product, 16 columns would multiply the channels of all of these groups, and of groups of four three quarters of
the weights would be zeros. Here a product takes one channel of each group, for all columns of that group: a permutation
of the channels that a panel reads, at most two vectors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.machine import COLUMNS, Dots, Machine, Narrow, Other, Tile
from packager.backends.ccompiler.gemm.tiles import heights_of
from packager.backends.ccompiler.gemm.windows import Rows, find_rows
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.gemm.copies import Convolution
    from packager.bundle.arrays import Array

# The maximum of products of a sum, which is one sum: errors grow with its length.
LONGEST = 256
# The most channels and filters of a group: more filters leave a panel to one group.
WIDEST = 8


@dataclass(frozen=True)
class NarrowGroups:
    """Groups that share a panel: their number, a power of two, and the channels and filters of each."""

    groups: int
    inner: int
    outer: int

    @property
    def columns(self) -> int:
        """The columns of a panel that groups have; the others are zeros."""
        return self.groups * self.outer

    @property
    def channels(self) -> int:
        """The channels that a panel reads: at most two vectors, which one instruction permutes."""
        return self.groups * self.inner


def find_narrow(conv: Convolution, outer: int) -> NarrowGroups | None:
    """Return how groups of few channels and filters share panels, at least half of one; ``conv`` has them apart.

    Of fewer channels than a quarter of the filters, as a product, zeros cost little.
    """
    inner, columns = conv.channels, outer // conv.groups
    if conv.kind.name != "f32" or max(inner, columns) > WIDEST or inner * columns == 1:
        return None
    if not columns // 4 <= inner <= 2 * columns or prod(conv.window.size) * inner > LONGEST:
        return None
    together = max(count for count in (1, 2, 4, 8, 16) if count * columns <= COLUMNS and conv.groups % count == 0)
    found = NarrowGroups(together, inner, columns)
    if together == 1 or 2 * found.columns < COLUMNS:
        return None
    packing = narrow_rows("", conv, found).packing
    return found if packing.slices == 1 and packing.length == found.channels else None  # stretches must be taps


def narrow_rows(x: str, conv: Convolution, narrow: NarrowGroups) -> Rows:
    """Return the rows of panels."""
    panels = replace(conv, groups=conv.groups // narrow.groups, merges=False)
    return find_rows(x, panels, COLUMNS // narrow.groups)


def most_rows(registers: int, inner: int, outer: int) -> int:
    """Return the rows of the largest tile: a sum and the data each, and the permutations of wide groups."""
    if inner > outer:
        return 4 if registers == 16 else 9
    return 6 if registers == 16 else 14 if inner <= 4 else 10


def narrow_of(machine: Machine, narrow: NarrowGroups, counts: tuple[int, ...] | None) -> Other:
    """Return the function that computes lines of these numbers of rows, or any for None."""
    inner, outer, groups = narrow.inner, narrow.outer, narrow.groups
    most = most_rows(machine.registers, inner, outer)
    heights = range(1, most + 1) if counts is None else {h for count in counts for h in heights_of(count, most)}
    tiles = frozenset(Narrow(inner, outer, groups, rows) for rows in heights)
    return Other(f"pk_narrow_{inner}_{outer}_{groups}", COLUMNS // groups, tiles, COLUMNS)


def narrow_packer(narrow: NarrowGroups) -> Callable[[Array], Array]:
    """Return the function that packs [O, ..., I] to [panel, tap, I, column]."""

    def pack(array: Array) -> Array:
        inner, columns = narrow.inner, narrow.columns
        panels = np.asarray(array).reshape(-1, columns, array[0].size // inner, inner).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(np.pad(panels, ((0, 0), (0, 0), (0, 0), (0, COLUMNS - columns))))

    return pack


def render_narrow(machine: Machine, wanted: Iterable[Tile | Dots | Narrow]) -> list[str]:
    """Return the C of the tiles of narrow groups among these, and of what calls those of groups of one size."""
    lanes = machine.vector_bytes // 4
    made: list[str] = []
    narrow = sorted(tile for tile in wanted if isinstance(tile, Narrow))
    for (inner, outer, groups), tiles in groupby(narrow, key=lambda tile: (tile.inner, tile.outer, tile.groups)):
        values: dict[str, Any] = {
            "inner": inner,
            "channels": inner * groups,
            "name": f"pk_narrow_{inner}_{outer}_{groups}",
            "lanes": lanes,
            "tiles": list(tiles),
            "most": most_rows(machine.registers, inner, outer),
            "vectors": [_vector(lane, lanes, inner, outer, groups) for lane in range(0, groups * outer, lanes)],
        }
        made.append(render("ccompiler/gemm/narrow.c.j2", values).trimmed())
    return made


def _vector(lane: int, lanes: int, inner: int, outer: int, groups: int) -> dict[str, Any]:
    """Return the columns of a panel from ``lane`` on: the channels that they read, and for each step those of a lane.

    ``single`` says that all are of one group.
    """
    of = [column // outer if column < groups * outer else lane // outer for column in range(lane, lane + lanes)]
    first = of[0] * inner
    chosen = [[group * inner + step - first for group in of] for step in range(inner)]
    reach = max(of) * inner + inner - first
    return {"lane": lane, "first": first, "reach": reach, "chosen": chosen, "single": len(set(of)) == 1}

"""Convolutions of groups of few channels, 16 columns of several groups at once, each with those of its own group.

As one product, 16 columns would multiply the channels of all of these groups, and of groups of four three quarters of
the weights would be zeros. Here a product takes one channel of each group, for all columns of that group: a permutation
of the channels that a panel reads, at most two vectors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.machine import COLUMNS, Dots, Machine, Narrow, Other, Tile
from packager.backends.ccompiler.gemm.tiles import heights_of
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.gemm.copies import Convolution
    from packager.bundle.arrays import Array

# The maximum of products of a sum, which is one sum: errors grow with its length.
LONGEST = 256
# Channels and columns of a group. More than 8 columns leave a panel to two groups at most.
WIDTHS = (1, 2, 4, 8)


def are_narrow(conv: Convolution, outer: int) -> bool:
    """Whether groups have few channels and columns, in whole panels; ``conv`` has them apart.

    A panel of columns reads at most as many channels as two of them hold. Of fewer than four, zeros cost little.
    """
    inner, columns = conv.channels, outer // conv.groups
    few = inner in WIDTHS and columns in WIDTHS and inner * columns > 1 and columns // 4 <= inner <= 2 * columns
    whole = conv.groups > 1 and outer % COLUMNS == 0 and few
    return whole and conv.kind.name == "f32" and prod(conv.window.size) * inner <= LONGEST


def most_rows(registers: int, inner: int, outer: int) -> int:
    """Return the rows of the largest tile: a sum and the data each, and the permutations of wide groups."""
    if inner > outer:
        return 4 if registers == 16 else 9
    return 6 if registers == 16 else 14 if inner <= 4 else 10


def narrow_of(machine: Machine, inner: int, outer: int, counts: tuple[int, ...] | None) -> Other:
    """Return the function that computes lines of these numbers of rows, or any for None."""
    most = most_rows(machine.registers, inner, outer)
    heights = range(1, most + 1) if counts is None else {h for count in counts for h in heights_of(count, most)}
    return Other(f"pk_narrow_{inner}_{outer}", outer, frozenset(Narrow(inner, outer, rows) for rows in heights))


def narrow_packer(inner: int) -> Callable[[Array], Array]:
    """Return the function that packs [O, ..., I] to [panel, tap, I, column]."""

    def pack(array: Array) -> Array:
        panels = np.asarray(array).reshape(-1, COLUMNS, array[0].size // inner, inner)
        return np.ascontiguousarray(panels.transpose(0, 2, 3, 1))

    return pack


def render_narrow(machine: Machine, wanted: Iterable[Tile | Dots | Narrow]) -> list[str]:
    """Return the C of the tiles of narrow groups among these, and of what calls those of groups of one size."""
    lanes = machine.vector_bytes // 4
    made: list[str] = []
    narrow = sorted(tile for tile in wanted if isinstance(tile, Narrow))
    for (inner, outer), tiles in groupby(narrow, key=lambda tile: (tile.inner, tile.outer)):
        values: dict[str, Any] = {
            "inner": inner,
            "outer": outer,
            "lanes": lanes,
            "tiles": list(tiles),
            "most": most_rows(machine.registers, inner, outer),
            "reach": lanes * inner // outer,  # channels that a vector of columns reads
            "permutations": [", ".join(str(lane // outer * inner + i) for lane in range(lanes)) for i in range(inner)],
        }
        made.append(render("ccompiler/gemm/narrow.c.j2", values).trimmed())
    return made

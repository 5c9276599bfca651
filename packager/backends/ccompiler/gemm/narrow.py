"""Convolutions of groups of few channels, 16 channels of several groups at once, each with those of its own group.

As one product, 16 columns would multiply all 16 channels, and of groups of four three quarters of the weights would be
zeros. Here a product takes one channel of each group, for all columns of that group: a permutation of 16 channels.
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
# Channels of a group: of fewer than four there is more to load than to multiply, and 16 fill a panel.
WIDTHS = (4, 8)


def are_narrow(conv: Convolution, outer: int) -> bool:
    """Whether groups have so few channels, as many as columns, and whole panels of both; ``conv`` has them apart."""
    width = conv.channels
    same = outer == width * conv.groups
    panels = conv.groups > 1 and same and width in WIDTHS and outer % COLUMNS == 0
    return panels and conv.kind.name == "f32" and prod(conv.window.size) * width <= LONGEST


def most_rows(registers: int, width: int) -> int:
    """Return the rows of the largest tile: a sum and a vector of data each, and the permutations of wide groups."""
    return 6 if registers == 16 else 14 if width <= WIDTHS[0] else 10


def narrow_of(machine: Machine, width: int, counts: tuple[int, ...] | None) -> Other:
    """Return the function that computes lines of these numbers of rows, or any for None."""
    most = most_rows(machine.registers, width)
    heights = range(1, most + 1) if counts is None else {h for count in counts for h in heights_of(count, most)}
    return Other(f"pk_narrow_{width}", width, frozenset(Narrow(width, rows) for rows in heights))


def narrow_packer(width: int) -> Callable[[Array], Array]:
    """Return the function that packs [O, ..., I] to [panel, tap, I, column]."""

    def pack(array: Array) -> Array:
        panels = np.asarray(array).reshape(-1, COLUMNS, array[0].size // width, width)
        return np.ascontiguousarray(panels.transpose(0, 2, 3, 1))

    return pack


def render_narrow(machine: Machine, wanted: Iterable[Tile | Dots | Narrow]) -> list[str]:
    """Return the C of the tiles of narrow groups among these, and of what calls those of one width."""
    lanes = machine.vector_bytes // 4
    made: list[str] = []
    narrow = sorted(tile for tile in wanted if isinstance(tile, Narrow))
    for width, tiles in groupby(narrow, key=lambda tile: tile.width):
        values: dict[str, Any] = {
            "width": width,
            "lanes": lanes,
            "tiles": list(tiles),
            "most": most_rows(machine.registers, width),
            "permutations": [", ".join(str(lane // width * width + i) for lane in range(lanes)) for i in range(width)],
        }
        made.append(render("ccompiler/gemm/narrow.c.j2", values).trimmed())
    return made

"""Products of few columns as dot products: vectors run along the elements of a row, not along columns.

A panel of packed weights has 16 columns, most of them zeros if a convolution has three filters. Here filters lie as
they are, one after the other, and the sums of a tile, one vector for each of its rows and columns, are added up at its
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.machine import COLUMNS, Dots, Machine, Narrow, Other, Tile
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.gemm.copies import Convolution
    from packager.backends.ccompiler.gemm.windows import Packing
    from packager.bundle.arrays import Array

# What adding up the lanes of a sum costs, in products of vectors.
ADDED_UP = 3
# The share of the cost of a panel that pays for what is not counted: loads, and lanes at the end of a line.
SHARE = 0.85
# Filters of the largest tile for a number of registers.
MOST = {16: 3, 32: 6}
# Rows of a tile of so many columns, which is 1 or more: enough sums to hide latency, few enough for the registers.
HEIGHTS = {16: (8, 4, 4), 32: (8, 8, 8, 4, 4, 4)}
# Shuffles of two vectors, in each four lanes: 0 to 3 are those of the first one.
MASKS = {"low": (0, 4, 1, 5), "high": (2, 6, 3, 7), "left": (0, 1, 4, 5), "right": (2, 3, 6, 7)}


@dataclass(frozen=True)
class Part:
    """A tile: its first column, and how many there are, and its rows."""

    first: int
    columns: int
    rows: int


def are_dots(conv: Convolution, columns: int) -> bool:
    """Whether dot products take less time than panels that are mostly empty."""
    window, channels = conv.window, conv.channels
    if conv.kind.name != "f32" or conv.groups > 1 or columns >= COLUMNS:
        return False
    *lines, wide = window.size
    merged = window.dilation[2] == 1
    length = channels * (wide if merged else 1)
    vectors = prod(lines) * (1 if merged else wide) * -(-length // COLUMNS)
    return columns * (vectors + ADDED_UP) < SHARE * prod(window.size) * channels


def dots_of(columns: int) -> Other:
    """Return the function that computes so many columns."""
    dots = Dots(columns)
    return Other(dots.name, 1, frozenset({dots}))


def dot_packer(packing: Packing) -> Callable[[Array], Array]:
    """Return the function that orders filters [O, ..., I] as windows are read; its result is a view of whole slices."""

    def pack(array: Array) -> Array:
        outer, inner = array.shape[0], array.shape[-1]
        if packing.slices == 1:
            return np.asarray(array).reshape(outer, -1)
        taps = np.asarray(array).reshape(outer, -1, inner)
        padded = np.pad(taps, ((0, 0), (0, 0), (0, packing.slices * packing.length - inner)))
        split = padded.reshape(outer, packing.stretches, packing.slices, packing.length)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3))

    return pack


def parts_of(columns: int, registers: int) -> tuple[Part, ...]:
    """Return the tiles that compute so many columns, as even as possible."""
    count = -(-columns // MOST[registers])
    cuts = [columns * index // count for index in range(count + 1)]
    return tuple(Part(first, end - first, HEIGHTS[registers][end - first - 1]) for first, end in pairwise(cuts))


def render_dots(machine: Machine, wanted: Iterable[Tile | Dots | Narrow], sources: Iterable[str]) -> list[str]:
    """Return the C of the dot products among these, and what they and ``sources`` share."""
    dots = sorted(dot for dot in wanted if isinstance(dot, Dots))
    if not dots and not any("pk_sum_lanes(" in source for source in sources):
        return []
    lanes = machine.vector_bytes // 4
    masks = [{"name": name, "lanes": _mask(pattern, lanes)} for name, pattern in MASKS.items()]
    made = [render("ccompiler/gemm/dots.h.j2", lanes=lanes, machine=machine.name, masks=masks)]
    made += [
        render(
            "ccompiler/gemm/dots.c.j2",
            name=dot.name,
            columns=dot.columns,
            parts=parts_of(dot.columns, machine.registers),
            lanes=lanes,
        )
        for dot in dots
    ]
    return [text.trimmed() for text in made]


def _mask(pattern: tuple[int, ...], lanes: int) -> str:
    """Return the lanes that a shuffle of two vectors takes, as C."""
    return ", ".join(str(lane // 4 * 4 + p % 4 + p // 4 * lanes) for lane in range(0, lanes, 4) for p in pattern)

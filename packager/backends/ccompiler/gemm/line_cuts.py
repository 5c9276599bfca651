"""Where lines and columns of a convolution's result are cut, so that blocks leave out taps that meet only padding.

A block leaves out a tap that meets padding for all of its rows. Of a wide dilation, as in ASPP (arXiv:1706.05587), most
taps do so for some rows: blocks that end where taps begin or cease to meet the image multiply little but the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from packager.backends.ccompiler.gemm.blocks import BLOCK

# Rows of a tile, and what a tile and a block cost beside their rows, in rows.
HEIGHT, TILE, CUT = 14, 2.0, 1.0
# Cuts must save this share of the products, or whole lines are as well.
WORTH = 0.92
# The maximum of places to cut: an axis with more has windows of many taps, of which few are left out.
MOST_PLACES = 40


@dataclass(frozen=True)
class Axis:
    """An axis of a convolution, of ``extent`` pixels, ``out`` of the result, and the window's numbers."""

    extent: int
    out: int
    size: int
    stride: int
    dilation: int
    before: int

    def taps(self, first: int, count: int) -> range:
        """Return the taps that meet more than padding for some of these rows."""
        origin = first * self.stride - self.before
        span = (count - 1) * self.stride
        begin = max(0, -((origin + span) // self.dilation))
        return range(begin, max(begin, min(self.size, -((origin - self.extent) // self.dilation))))

    def is_inside(self, first: int, count: int) -> bool:
        """Whether those taps meet no padding for any of these rows."""
        origin, taps = first * self.stride - self.before, self.taps(first, count)
        last = origin + (count - 1) * self.stride + (taps.stop - 1) * self.dilation
        return not taps or (origin + taps.start * self.dilation >= 0 and last < self.extent)

    def places(self) -> list[int]:
        """Return the rows at which a tap begins or ceases to meet the image, and both ends."""
        found = {0, self.out}
        for tap in range(self.size):
            away = self.before - tap * self.dilation
            found |= {-(-away // self.stride), -(-(self.extent + away) // self.stride)}
        return sorted(row for row in found if 0 <= row <= self.out)


def find_cuts(tall: Axis, wide: Axis, together: int, part: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return where lines and columns are cut, with both ends; None if blocks of ``together`` x ``part`` do as well."""
    if min(tall.out, wide.out) < 1:
        return None
    places = tall.places(), wide.places()
    if max(map(len, places)) > MOST_PLACES:
        return None
    lefts = _halved(_cheapest(wide, places[1], is_line=False), BLOCK)
    most = max(1, BLOCK // _longest(lefts))
    tops = _halved(_cheapest(tall, places[0], is_line=True), most)
    usual = (*range(0, tall.out, together), tall.out), (*range(0, wide.out, part), wide.out)
    if _cost(tall, tops, is_line=True) * _cost(wide, lefts, is_line=False) > WORTH * (
        _cost(tall, usual[0], is_line=True) * _cost(wide, usual[1], is_line=False)
    ):
        return None
    return tops, lefts


def _longest(cuts: Sequence[int]) -> int:
    return max(end - first for first, end in pairwise(cuts))


def _cost_between(axis: Axis, first: int, end: int, *, is_line: bool) -> float:
    """Return the cost of the rows between two cuts: products, in rows of a tile."""
    count = end - first
    tiles = 0.0 if is_line else 0.5 if 2 * count <= HEIGHT else float(-(-count // HEIGHT))
    return len(axis.taps(first, count)) * (count + TILE * tiles)


def _cost(axis: Axis, cuts: Sequence[int], *, is_line: bool) -> float:
    return sum(CUT + _cost_between(axis, first, end, is_line=is_line) for first, end in pairwise(cuts))


def _cheapest(axis: Axis, places: Sequence[int], *, is_line: bool) -> list[int]:
    """Return the cheapest choice of places to cut, by dynamic programming."""
    best: list[tuple[float, list[int]]] = [(0.0, [places[0]])]
    for end in places[1:]:
        options = (
            (cost + CUT + _cost_between(axis, cuts[-1], end, is_line=is_line), [*cuts, end]) for cost, cuts in best
        )
        best.append(min(options))
    return best[-1][1]


def _halved(cuts: Sequence[int], most: int) -> tuple[int, ...]:
    """Return cuts at most ``most`` apart."""
    made = [cuts[0]]
    for first, end in pairwise(cuts):
        count = -(-(end - first) // most)
        made += [first + (end - first) * index // count for index in range(1, count + 1)]
    return tuple(made)

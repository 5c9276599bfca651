"""Copies of what a block of windows reads: how many planes and channels at once, so that they fit the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as choices
from math import prod
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.shapes import Extent, Shape
from packager.backends.ccompiler.gemm.blocks import ALIASED, BLOCK, COPIED, GAP, sum_of
from packager.backends.ccompiler.gemm.line_cuts import Axis

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.machine import Kind
    from packager.backends.ccompiler.core.operations import Window
    from packager.backends.ccompiler.gemm.line_blocks import LineBlocks

# The maximum elements of a copy: the size of the buffer for gathered rows.
MOST_COPIED = BLOCK * COPIED
# The maximum stretches of a row, whose table is on the stack; windows of more are gathered.
MOST_STRETCHES = 256
# The maximum steps of a pass: its weights, two panels wide, and its rows stay in the L2 cache.
MOST_STEPS = 2048
# The minimum channels of a slice.
LEAST_SLICE = 16


@dataclass(frozen=True)
class Convolution:
    """A convolution over [N, D, H, W, C]; ``channels`` are those of a group.

    Without ``merges`` each tap is a stretch of its own. A block has at most ``block`` rows.
    """

    data: Shape
    result: Shape
    window: Window
    groups: int
    kind: Kind
    merges: bool = True
    block: int = BLOCK

    @property
    def channels(self) -> int:
        """Channels that a window reads of a pixel."""
        return int(self.data[4]) // self.groups

    def axis(self, index: int) -> Axis | None:
        """Return an axis: 0 (depth), 1 (height) or 2 (width); None if it is symbolic."""
        extent, out, window = self.data[1 + index], self.result[1 + index], self.window
        if not isinstance(extent, int) or not isinstance(out, int):
            return None
        numbers = (window.size[index], window.strides[index], window.dilation[index], window.before[index])
        return Axis(extent, out, *numbers)

    @property
    def is_inside(self) -> bool:
        """Whether no window exceeds the image."""
        window, extents = self.window, (self.data[1:4], self.result[1:4])
        axes = zip(*extents, window.strides, window.size, window.dilation, strict=True)
        return not window.is_padded and all(
            not isinstance(extent, int)
            or not isinstance(out, int)
            or (out - 1) * stride + (size - 1) * dilation < extent
            for extent, out, stride, size, dilation in axes
        )


@dataclass(frozen=True)
class Copy:
    """A copy of what a block reads: ``planes`` at once, ``channels`` per slice, ``pixel`` elements apart.

    Lines (``apart_y``) and columns are copied for each tap, or those from the first tap's to the last tap's.
    """

    elements: int
    planes: int
    channels: int
    pixel: int
    apart_y: bool
    apart_x: bool


def _merges(conv: Convolution) -> bool:
    """Whether the pixels of a line of taps are one stretch, in the image or a copy of it."""
    whole = conv.channels % conv.kind.pair == 0 or not conv.kind.converts
    return conv.merges and conv.window.dilation[2] == 1 and whole


def _aliases(elements: Extent, kind: Kind) -> bool:
    return isinstance(elements, int) and elements % (ALIASED * kind.unit) == 0


def is_direct(conv: Convolution) -> bool:
    """Whether blocks that are inside may be read in the image: pitches do not alias, nor are bytes read beyond it."""
    pitch = conv.window.strides[2] * conv.data[4]
    steps = conv.channels * conv.window.size[2] if _merges(conv) and conv.groups == 1 else conv.channels
    return not conv.kind.converts and not _aliases(pitch, conv.kind) and steps % conv.kind.unit == 0


def find_copy(conv: Convolution, blocks: LineBlocks) -> Copy | None:
    """Return how blocks copy what they read: few passes, then few elements. None if nothing fits the buffer."""
    window, channels = conv.window, conv.channels
    if (conv.is_inside or _are_inside(conv, blocks)) and is_direct(conv):
        per_pass = max(1, MOST_STEPS // prod(window.size))
        slices = (
            1 if channels <= 2 * LEAST_SLICE or channels <= per_pass else -(-channels // max(per_pass, 2 * LEAST_SLICE))
        )
        fits = Copy(0, window.size[0], _even(channels, slices), channels, apart_y=False, apart_x=False)
        return fits if _stretches(conv, fits) <= MOST_STRETCHES else None
    found = next(_fitting(conv, blocks), None)
    return found if found is not None and _stretches(conv, found) <= MOST_STRETCHES else None


def _even(channels: int, slices: int) -> int:
    """Return the channels of a slice, whole panels of them if there are several."""
    return channels if slices == 1 else -(-channels // slices // LEAST_SLICE) * LEAST_SLICE


def _stretches(conv: Convolution, copy: Copy) -> int:
    """Return the entries of the table of stretches: long ones are cut into sums."""
    merged, (*lines, wide) = is_merged(conv, copy), conv.window.size
    length = copy.channels * (wide if merged else 1)
    return prod(lines) * (1 if merged else wide) * -(-length // (sum_of(conv.kind)[0] * conv.kind.pair))


def is_merged(conv: Convolution, copy: Copy) -> bool:
    """Whether lines of taps are contiguous: in the copy, and in the image if that is read too."""
    apart = copy.apart_x or copy.pixel * (conv.kind.pair if conv.kind.converts else 1) != conv.channels
    in_image = not is_direct(conv) or conv.groups == 1
    return _merges(conv) and copy.channels == conv.channels and not apart and in_image


def _fitting(conv: Convolution, blocks: LineBlocks) -> Iterator[Copy]:
    """Yield copies that fit the buffer: with all planes and channels, with one plane, and with fewer channels."""
    window, kind = conv.window, conv.kind
    deep, *met = (_met(conv, axis, cuts) for axis, cuts in enumerate(((), blocks.tops, blocks.lefts)))
    if conv.channels % kind.pair:
        met[1] = window.size[2]  # whole lines of bytes
    pixels, (apart_y, apart_x) = min(
        (_pixels(window, blocks, met, apart), apart) for apart in choices((False, True), repeat=2)
    )
    slices = range(1, -(-conv.channels // LEAST_SLICE) + 1)
    for planes, count in [(deep, 1), *((1, count) for count in slices)]:
        channels = _even(conv.channels, count)
        steps = prod(window.size[1:]) * min(planes, window.size[0]) * channels
        if steps > MOST_STEPS * kind.pair and channels > 4 * LEAST_SLICE:
            continue
        pixel = -(-channels // kind.pair) if kind.converts else channels
        pitch = pixel * (1 if apart_x else window.strides[2])
        pixel += GAP * kind.unit if _aliases(pitch, kind) else 0
        elements = pixels * planes * pixel
        if elements <= MOST_COPIED * kind.unit:
            all_planes = window.size[0] if planes == deep else 1
            yield Copy(elements + 4 * kind.unit, all_planes, channels, pixel, apart_y, apart_x)


def _met(conv: Convolution, axis: int, cuts: tuple[int, ...]) -> int:
    """Return the most taps of an axis that meet more than padding for any row between two cuts, at least 1."""
    known = conv.axis(axis)
    if known is None:
        return conv.window.size[axis]
    return max(1, *(len(known.taps(first, end - first)) for first, end in pairwise(cuts or (0, known.out))))


def _are_inside(conv: Convolution, blocks: LineBlocks) -> bool:
    """Whether no block meets padding, but for taps that it leaves out."""
    cuts = ((), blocks.tops, blocks.lefts)
    axes = [conv.axis(axis) for axis in range(3)]
    return bool(blocks.tops) and all(
        known is not None and all(known.is_inside(first, end - first) for first, end in _ranges(known, between))
        for known, between in zip(axes, cuts, strict=True)
    )


def _ranges(axis: Axis, cuts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Return the rows between cuts; without any, each row by itself, as planes are."""
    return pairwise(cuts or tuple(range(axis.out + 1)))


def _pixels(window: Window, blocks: LineBlocks, met: Sequence[int], apart: Sequence[bool]) -> int:
    """Return the maximum pixels of a plane that a block copies; ``met`` are the taps along lines and columns."""
    sizes = [(blocks.most // places, places) for places in range(1, blocks.most + 1)]
    if blocks.counts is not None:
        together = blocks.together
        sizes = [(together if isinstance(together, int) else 1, blocks.counts[0])]

    def along(axis: int, rows: int) -> int:
        taps, stride, dilation = met[axis], window.strides[1 + axis], window.dilation[1 + axis]
        return taps * rows if apart[axis] else (rows - 1) * stride + (taps - 1) * dilation + 1

    return max(along(0, lines) * along(1, places) for lines, places in sizes)

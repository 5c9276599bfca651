"""The rows of a convolution: windows of an image with channels last, read in place or from copies of few lines.

A row of the product is a window, a number of stretches of the image: its taps, or whole lines of taps. Stretches of
neighboring windows have a constant pitch, so that a tile accumulates stretch by stretch, without im2col. Blocks whose
windows exceed the image, or would alias in the cache, copy what they read first, with zeros around it: once for all
taps, a third of the size of im2col for 3x3 windows. Taps that meet only padding for all rows of a block are left out.
Many channels are taken in slices, many planes one by one, so that copies fit a buffer on the stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.machine import COLUMNS
from packager.backends.ccompiler.core.operations import Window
from packager.backends.ccompiler.core.shapes import Shape, c_text, equal, product
from packager.backends.ccompiler.gemm.blocks import (
    Data,
    even_blocks,
    gathered,
    rows_of,
    sum_of,
)
from packager.backends.ccompiler.gemm.copies import Convolution, Copy, find_copy, is_direct, is_merged
from packager.backends.ccompiler.gemm.line_blocks import LineBlocks
from packager.backends.ccompiler.gemm.line_cuts import find_cuts

if TYPE_CHECKING:
    from packager.backends.ccompiler.gemm.blocks import Blocks

# Pixels of a line that make a block by themselves.
LEAST_PLACES = 24


@dataclass(frozen=True)
class Packing:
    """How the weights of a window follow each other: slices of channels, stretches, channels of a slice.

    A stretch has ``length`` weights, with zeros up to whole steps of the element type; a slice has ``stretches``.
    """

    slices: int
    stretches: int
    length: int
    merged: bool  # stretches are lines of taps

    @property
    def layout(self) -> str:
        """The part of a layout's name that tells it from others of equal weights."""
        return (f"s{self.slices}" if self.slices > 1 else "") + ("l" if self.merged else "t")


@dataclass(frozen=True)
class Rows:
    """The rows of a product: their blocks, where their elements are, declarations in C, and the order of weights."""

    blocks: Blocks | LineBlocks
    data: Data
    setup: str
    packing: Packing


def find_rows(x: str, conv: Convolution, panel: int = COLUMNS) -> Rows:
    """Return the rows of a convolution's product; ``x`` is C that points to its data.

    Weights are packed in panels of so many columns.
    """
    kind, window, channels = conv.kind, conv.window, conv.channels
    taps = prod(window.size)
    if window.is_place and conv.groups == 1:
        even = even_blocks(product(conv.result[:4]))
        pixels = rows_of(x, "first", channels, channels, kind, even)
        return Rows(even, pixels, "", Packing(1, 1, channels, merged=True))
    source = f"{x} + batch * {channels}" if conv.groups > 1 else x
    setup = f"const pk_window_t window = {_fields(conv)};"
    blocks = _line_blocks(conv)
    copy = find_copy(conv, blocks)
    if copy is not None:
        return _read(source, conv, blocks, copy, setup, panel)
    lines = _lines_as_planes(conv)
    if lines is not None:
        return find_rows(x, lines, panel)
    depth = channels * taps
    gathering = even_blocks(product(conv.result[:4]))
    taken = f"pk_min_i64(taken * {kind.pair}, {depth} - done * {kind.pair})"
    gather = f"pk_gather_windows_{kind.name}(a, {source}, &window, apart, first, count, done * {kind.pair}, {taken});"
    return Rows(gathering, gathered(gather, gathering, kind.unit), setup, Packing(1, 1, depth, merged=True))


def _lines_as_planes(conv: Convolution) -> Convolution | None:
    """Return a convolution of images as one of volumes whose planes are lines: blocks copy what they read line by line.

    None if it has no lines of taps, or its lines have too few pixels for a block.
    """
    window, places = conv.window, conv.result[3]
    if not equal(conv.data[1], 1) or window.size[0] > 1 or window.size[1] == 1 or window.before[0]:
        return None
    if not isinstance(places, int) or places < LEAST_PLACES:
        return None
    numbers = (window.size, window.strides, window.dilation, window.before, window.after)
    turned = Window(*((along[1], along[0], along[2]) for along in numbers))
    data, result = (Shape((s[0], s[2], s[1], *s[3:])) for s in (conv.data, conv.result))
    return replace(conv, data=data, result=result, window=turned)


def _line_blocks(conv: Convolution) -> LineBlocks:
    """Return the blocks of a convolution's result."""
    even = LineBlocks(product(conv.result[:2]), conv.result[2], conv.result[3], most=conv.block)
    tall, wide = conv.axis(1), conv.axis(2)
    if tall is None or wide is None or even.counts is None or not isinstance(even.together, int):
        return even
    cuts = find_cuts(tall, wide, even.together, even.counts[0]) if conv.window.is_padded else None
    return even if cuts is None else replace(even, tops=cuts[0], lefts=cuts[1])


def _fields(conv: Convolution) -> str:
    """Return the fields of a ``pk_window_t``."""
    window = conv.window
    arrays = (conv.data[1:4], conv.result[1:4], window.size, window.strides, window.dilation, window.before)
    texts = ["{" + ", ".join(map(c_text, array)) + "}" for array in arrays]
    return "{ " + ", ".join([*texts, c_text(conv.data[4]), c_text(conv.channels)]) + " }"


def _read(x: str, conv: Convolution, blocks: LineBlocks, copy: Copy, setup: str, panel: int) -> Rows:
    """Return rows that are read in the image or copied."""
    kind, window, channels = conv.kind, conv.window, conv.channels
    merged = is_merged(conv, copy)
    slices, planes = -(-channels // copy.channels), -(-window.size[0] // copy.planes)
    length = copy.channels * (window.size[2] if merged else 1)
    steps = -(-length // kind.pair)
    stretches = prod(window.size[:2]) * (1 if merged else window.size[2])
    step = panel * kind.pair
    tap = (copy.channels // kind.pair if merged else steps) * step
    line = steps * step if merged else window.size[2] * tap
    whole = merged and channels % kind.pair != 0
    flags = (copy.apart_y, copy.apart_x, is_direct(conv), merged, whole)
    fields = [copy.pixel, *map(int, flags), line, tap, kind.unit, kind.pair, step, *sum_of(kind)]
    setup += f"\n    const pk_reading_t reading = {{ {', '.join(map(str, fields))} }};"

    depth, image = c_text(conv.result[1]), c_text(product(conv.data[1:]))
    prepare = (
        f"const pk_block_t met = pk_find_taps(&window, plane % {depth}, line, place, lines, places, {int(whole)});\n"
        f"        const {kind.stored} *image = {x} + plane / {depth} * {image};\n"
        f"        pk_stretch_t stretches[{stretches // planes * -(-steps // sum_of(kind)[0])}];"
    )
    buffer = copy.elements
    if not buffer:
        prepare += f"\n        {kind.data} *a = 0;"
    begin = f"pass % {planes}" if planes > 1 else "0"
    end = f"pass % {planes} + 1" if planes > 1 else str(window.size[0])
    slice_ = "0" if slices == 1 else f"pass / {planes} * {copy.channels}" if planes > 1 else f"pass * {copy.channels}"
    count = str(channels) if slices == 1 else f"pk_min_i64({copy.channels}, {channels} - {slice_})"
    gather = (
        f"pk_rows_t rows;\n"
        f"            const {kind.data} *from = pk_find_rows_{kind.name}(&rows, stretches, a, image + {slice_},"
        f" &window, &met, &reading, {begin}, {end}, {count});"
    )
    data = Data(
        "from",
        "",
        buffer=buffer,
        prepare=prepare,
        gather=gather,
        stretch=stretches // planes * steps,
        passes=str(slices * planes),
        groups=blocks.counts,
        grouped=blocks.is_grouped,
    )
    return Rows(blocks, data, setup, Packing(slices, stretches, length, merged))

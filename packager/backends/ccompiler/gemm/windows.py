"""The rows of a convolution: windows of an image with channels last, read where they are or from copies of few lines.

A row of the product is a window, which is a number of stretches of the image: its taps, or whole lines of taps. Stretches
of neighboring windows have a constant pitch, so that a tile accumulates stretch by stretch, without im2col. Blocks whose
windows exceed the image, or would alias in the cache, copy what they read first, with zeros around it: once for all taps,
a third of the size of im2col for 3x3 windows. Taps that meet only padding for all rows of a block are left out. Many
channels are taken in slices, many planes one by one, so that copies fit a buffer on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as choices
from math import prod
from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.machine import COLUMNS
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, product
from packager.backends.ccompiler.gemm.blocks import ALIASED, BLOCK, COPIED, GAP, SUM, Data, even_blocks, gathered, rows_of
from packager.backends.ccompiler.gemm.line_blocks import LineBlocks

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.machine import Kind
    from packager.backends.ccompiler.core.operations import Window
    from packager.backends.ccompiler.gemm.blocks import Blocks

# The maximum elements of a copy: the size of the buffer for gathered rows.
MOST_COPIED = BLOCK * COPIED
# The maximum stretches of a row; windows of more are gathered.
MOST_STRETCHES = 512
# The maximum steps of a pass: its weights, two panels wide, and its rows stay in the L2 cache.
MOST_STEPS = 2048
# The minimum channels of a slice.
LEAST_SLICE = 16


@dataclass(frozen=True)
class Packing:
    """How the weights of a window follow each other: slices of channels, stretches, channels of a slice.

    A stretch has ``length`` weights, with zeros up to whole steps of the element type; there are ``stretches`` per slice.
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


@dataclass(frozen=True)
class _Copy:
    """A copy of what a block reads: ``planes`` at once, ``channels`` per slice, ``pixel`` elements apart.

    Lines (``apart_y``) and columns are copied for each tap, or those from the first tap's to the last tap's.
    """

    elements: int
    planes: int
    channels: int
    pixel: int
    apart_y: bool
    apart_x: bool


@dataclass(frozen=True)
class Convolution:
    """A convolution over [N, D, H, W, C]; ``channels`` are those of a group."""

    data: Shape
    result: Shape
    window: Window
    groups: int
    kind: Kind

    @property
    def channels(self) -> int:
        """Channels that a window reads of a pixel."""
        return int(self.data[4]) // self.groups

    @property
    def is_inside(self) -> bool:
        """Whether no window exceeds the image."""
        axes = zip(self.data[1:4], self.result[1:4], self.window.strides, self.window.size, self.window.dilation)
        return not self.window.is_padded and all(
            not isinstance(extent, int) or not isinstance(out, int) or (out - 1) * stride + (size - 1) * dilation < extent
            for extent, out, stride, size, dilation in axes
        )


def find_rows(x: str, conv: Convolution) -> Rows:
    """Return the rows of a convolution's product; ``x`` is C that points to its data."""
    kind, window, channels = conv.kind, conv.window, conv.channels
    taps = prod(window.size)
    if window.is_place and conv.groups == 1:
        blocks = even_blocks(product(conv.result[:4]))
        data = rows_of(x, "first", channels, channels, kind, blocks)
        return Rows(blocks, data, "", Packing(1, 1, channels, merged=True))
    source = f"{x} + batch * {channels}" if conv.groups > 1 else x
    setup = f"const pk_window_t window = {_fields(conv)};"
    blocks = LineBlocks(product(conv.result[:2]), conv.result[2], conv.result[3])
    copy = _find_copy(conv, blocks)
    if copy is not None:
        return _read(source, conv, blocks, copy, setup)
    depth = channels * taps
    gathering = even_blocks(product(conv.result[:4]))
    taken = f"pk_min_i64(taken * {kind.pair}, {depth} - done * {kind.pair})"
    gather = f"pk_gather_windows_{kind.name}(a, {source}, &window, apart, first, count, done * {kind.pair}, {taken});"
    return Rows(gathering, gathered(gather, gathering, kind.unit), setup, Packing(1, 1, depth, merged=True))


def _fields(conv: Convolution) -> str:
    """Return the fields of a ``pk_window_t``."""
    window = conv.window
    arrays = (conv.data[1:4], conv.result[1:4], window.size, window.strides, window.dilation, window.before)
    texts = ["{" + ", ".join(map(c_text, array)) + "}" for array in arrays]
    return "{ " + ", ".join([*texts, c_text(conv.data[4]), c_text(conv.channels)]) + " }"


def _merges(conv: Convolution) -> bool:
    """Whether the pixels of a line of taps are one stretch, in the image or a copy of it."""
    whole = conv.channels % conv.kind.pair == 0 or not conv.kind.converts
    return conv.window.dilation[2] == 1 and whole


def _aliases(elements: Extent, kind: Kind) -> bool:
    return isinstance(elements, int) and elements % (ALIASED * kind.unit) == 0


def _is_direct(conv: Convolution) -> bool:
    """Whether blocks that are inside may be read in the image: pitches do not alias, nor are bytes read beyond it."""
    pitch = conv.window.strides[2] * conv.data[4]
    steps = conv.channels * conv.window.size[2] if _merges(conv) and conv.groups == 1 else conv.channels
    return not conv.kind.converts and not _aliases(pitch, conv.kind) and steps % conv.kind.unit == 0


def _find_copy(conv: Convolution, blocks: LineBlocks) -> _Copy | None:
    """Return how blocks copy what they read: few passes, then few elements. None if nothing fits the buffer."""
    window, channels = conv.window, conv.channels
    if conv.is_inside and _is_direct(conv):
        per_pass = max(1, MOST_STEPS // prod(window.size))
        slices = 1 if channels <= 2 * LEAST_SLICE or channels <= per_pass else -(-channels // max(per_pass, 2 * LEAST_SLICE))
        fits = _Copy(0, window.size[0], _even(channels, slices), channels, apart_y=False, apart_x=False)
        return fits if _stretches(conv, fits) <= MOST_STRETCHES else None
    found = next(_fitting(conv, blocks), None)
    return found if found is not None and _stretches(conv, found) <= MOST_STRETCHES else None


def _even(channels: int, slices: int) -> int:
    """Return the channels of a slice, whole panels of them if there are several."""
    return channels if slices == 1 else -(-channels // slices // LEAST_SLICE) * LEAST_SLICE


def _stretches(conv: Convolution, copy: _Copy) -> int:
    merged = _is_merged(conv, copy)
    return prod(conv.window.size[:2]) * (1 if merged else conv.window.size[2])


def _is_merged(conv: Convolution, copy: _Copy) -> bool:
    """Whether lines of taps are contiguous: in the copy, and in the image if that is read too."""
    apart = copy.apart_x or copy.pixel * (conv.kind.pair if conv.kind.converts else 1) != conv.channels
    in_image = not _is_direct(conv) or conv.groups == 1
    return _merges(conv) and copy.channels == conv.channels and not apart and in_image


def _fitting(conv: Convolution, blocks: LineBlocks) -> Iterator[_Copy]:
    """Yield copies that fit the buffer: with all planes and channels, with one plane, and with fewer channels."""
    window, kind = conv.window, conv.kind
    shortest = min(((_pixels(window, blocks, *apart), apart) for apart in choices((False, True), repeat=2)))
    pixels, (apart_y, apart_x) = shortest
    deep = _met(window, conv, 0)
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
            yield _Copy(elements + 4 * kind.unit, all_planes, channels, pixel, apart_y, apart_x)


def _met(window: Window, conv: Convolution, axis: int) -> int:
    """Return the taps of an axis that meet more than padding for any row."""
    size, stride, dilation, before = (
        values[axis] for values in (window.size, window.strides, window.dilation, window.before)
    )
    extent, out = conv.data[1 + axis], conv.result[1 + axis]
    if not isinstance(extent, int) or not isinstance(out, int):
        return int(size)
    last = (out - 1) * stride - before
    met = [tap for tap in range(size) if last + tap * dilation >= 0 and tap * dilation - before < extent]
    return len(met)


def _pixels(window: Window, blocks: LineBlocks, apart_y: bool, apart_x: bool) -> int:
    """Return the maximum pixels of a plane that a block copies."""
    if blocks.counts is not None and isinstance(blocks.together, int):
        sizes = [(blocks.together, blocks.counts[0])]
    else:
        sizes = [(BLOCK // places, places) for places in range(1, BLOCK + 1)]
        if blocks.counts is not None:
            sizes = [(BLOCK // blocks.counts[0] or 1, blocks.counts[0])]

    def along(axis: int, rows: int, apart: bool) -> int:
        size, stride, dilation = window.size[axis], window.strides[axis], window.dilation[axis]
        return size * rows if apart else (rows - 1) * stride + (size - 1) * dilation + 1

    return max(along(1, lines, apart_y) * along(2, places, apart_x) for lines, places in sizes)


def _read(x: str, conv: Convolution, blocks: LineBlocks, copy: _Copy, setup: str) -> Rows:
    """Return rows that are read in the image or copied."""
    kind, window, channels = conv.kind, conv.window, conv.channels
    merged = _is_merged(conv, copy)
    slices, planes = -(-channels // copy.channels), -(-window.size[0] // copy.planes)
    length = copy.channels * (window.size[2] if merged else 1)
    steps = -(-length // kind.pair)
    stretches = prod(window.size[:2]) * (1 if merged else window.size[2])
    step = COLUMNS * kind.pair
    tap = (copy.channels // kind.pair if merged else steps) * step
    line = steps * step if merged else window.size[2] * tap
    whole = merged and channels % kind.pair != 0
    flags = (copy.apart_y, copy.apart_x, _is_direct(conv), merged, whole)
    fields = [copy.pixel, *map(int, flags), line, tap, kind.unit, kind.pair, step]
    setup += f"\n    const pk_reading_t reading = {{ {', '.join(map(str, fields))} }};"

    depth, image = c_text(conv.result[1]), c_text(product(conv.data[1:]))
    prepare = (
        f"const pk_block_t met = pk_find_taps(&window, plane % {depth}, line, place, lines, places, {int(whole)});\n"
        f"        const {kind.stored} *image = {x} + plane / {depth} * {image};\n"
        f"        pk_stretch_t stretches[{stretches // planes * -(-steps // SUM)}];"
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
        f"            const {kind.data} *from = pk_find_rows_{kind.name}(&rows, stretches, a, image + {slice_}, &window,"
        f" &met, &reading, {begin}, {end}, {count});"
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
        grouped=blocks.counts is None or blocks.parts == 1,
    )
    return Rows(blocks, data, setup, Packing(slices, stretches, length, merged))

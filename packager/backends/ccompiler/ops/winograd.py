"""Winograd convolution: F(2x2, 3x3), 16 multiplications for 4 pixels instead of 36, or F(4x4, 3x3), 36 for 16 pixels.

Tiles of the image are transformed along both axes, and so are the filters, at build time. Each element of a tile is a
GEMM over the channels, whose results are transformed back. A block of tiles stays in the L2 cache from the image to
the epilogue: its channels are taken in slices, which also keeps sums short, and its columns in bands, for each of which
data is transformed again.

F(2x2) only adds and halves. Its errors against float64 are 0.8 to 1.3 times those of a direct convolution, for 16 to
1024 channels (``benchmarks.cpu.errors``). F(4x4) has interpolation points 0, +-5/8, +-3/2 and infinity, whose rounding
errors are a quarter of those of the usual 0, +-1, +-2 (Barabasz et al., arXiv:1803.10986), but still 3 to 5 times those
of a direct convolution, with sums of any length: no layer gets it unless the Target says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_blocks
from packager.backends.ccompiler.gemm.loop_nest import packer
from packager.backends.ccompiler.gemm.tiles import tiles_of
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.operations import Window
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class Variant:
    """F(side x side, 3x3) with interpolation points 0, +-``points`` and infinity.

    At most ``tiles``, ``channels`` and ``columns`` are taken at once: their buffers are on the stack.
    """

    side: int
    points: tuple[float, ...]
    tiles: int
    channels: int
    columns: int

    @property
    def values(self) -> int:
        """The elements of a transformed tile."""
        return (self.side + 2) ** 2


VARIANTS = {2: Variant(2, (1.0,), 14, 64, 64), 4: Variant(4, (5 / 8, 3 / 2), 12, 32, 32)}
# Transformed filters are 1.8 times as large, or four times. Those that do not stay in the shared cache come from memory
# in every run: worth it for the products of many tiles.
LEAST_TILES = 4
MANY_TILES = 32
HELD = 4 << 20


def find_winograd(anchor: Operation, window: Window, groups: int, side: int) -> Variant | None:
    """Return the variant if it is faster for a convolution over NHWC; ``side`` is 0 for none."""
    data, weight = anchor.uses
    outer, inner = int(weight.shape[0]), int(weight.shape[-1])
    sides = anchor.result.shape[1:-1]
    if not side or data.tensor.dtype != "float32" or groups != 1 or not all(isinstance(each, int) for each in sides):
        return None
    if (window.size, window.strides, window.dilation) != ((3, 3), (1, 1), (1, 1)):
        return None
    variant = VARIANTS[side]
    least = LEAST_TILES if variant.values * inner * outer * 4 <= HELD else MANY_TILES
    is_worth_it = ceil_div(sides[0], side) * ceil_div(sides[1], side) >= least
    return variant if is_worth_it and inner % COLUMNS == outer % COLUMNS == 0 else None


def add_winograd(stage: Stage, anchor: Operation, window: Window, group: GroupDraft, variant: Variant) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data, weight = anchor.uses
    kind, side = KINDS["float32"], variant.side
    batch, height, width, inner = data.shape
    outer = int(stage.inner)
    lines, places = anchor.result.shape[1:3]
    tall, wide = ceil_div(lines, side), ceil_div(places, side)
    blocks = even_blocks(product((batch, tall, wide)), variant.tiles)
    channels, band = _even(int(inner), variant.channels), min(outer, variant.columns)
    draft = group.function("winograd")
    x = draft.tensor(data.tensor, False)
    layout = f"winograd{side}x{COLUMNS}"
    w = draft.packed(group.packing(group.constant(weight), layout, lambda array: transform(array, variant)), "float")
    values = {
        "x": x,
        "w": w,
        "program": draft.program(stage, "sums[j]"),
        "side": side,
        "span": side + 2,
        "values": variant.values,
        "height": c_text(height),
        "width_of_data": c_text(width),
        "lines": c_text(lines),
        "places": c_text(places),
        "tall": c_text(tall),
        "wide": c_text(wide),
        "inner": inner,
        "outer": outer,
        "top": window.before[0],
        "left": window.before[1],
        "block": blocks.room,
        "blocks": c_text(blocks.count),
        "place": blocks.place,
        "slice": channels,
        "band": band,
        "width": str(band) if outer % band == 0 else f"pk_min_i64({band}, {outer} - column)",
        "lanes": min(COLUMNS, group.machine.vector_bytes // 4),
    }
    # Bands are the outer loop: their filters stay in the L2 cache for all blocks.
    extent = product((ceil_div(outer, band), blocks.count))
    tiles = tiles_of(group.machine, kind, blocks.counts, outer, band)
    draft.finish("gemm/winograd", extent, values, tiles, product((variant.values, inner, outer)))


def _even(count: int, most: int) -> int:
    """Return how many of ``count`` are taken at once, as evenly as possible, whole panels."""
    return -(-count // -(-count // most) // COLUMNS) * COLUMNS


def transform(array: Array, variant: Variant) -> Array:
    """Return weights [O, 3, 3, I] transformed, as [values, O / 16, I, 16]."""
    outer, _, _, inner = array.shape
    matrix: Any = filter_matrix(variant)
    values = np.einsum("ak,oklc,bl->abco", matrix, np.asarray(array, np.float64), matrix, optimize=True)
    shape = (variant.values, inner, outer)
    return packer(shape, 1)(values.astype(np.float32).reshape(shape))


def filter_matrix(variant: Variant) -> Array:
    """Return the filter transform, which evaluates quadratic polynomials at the points, with its scale."""
    points = np.array([0.0, *(sign * point for point in variant.points for sign in (1, -1))])
    rows = [[p**k / np.prod([p - q for q in points if q != p]) for k in range(3)] for p in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def render_transforms(sources: Sequence[str]) -> list[str]:
    """Return the C of the transforms that these functions call."""
    called = [each for each in VARIANTS.values() if any(f"pk_winograd_data{each.side}(" in text for text in sources)]
    return [render("ccompiler/gemm/winograd.h.j2", side=each.side, points=each.points).trimmed() for each in called]

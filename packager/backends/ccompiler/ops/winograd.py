"""Winograd convolution: F(2x2, 3x3), 16 multiplications for 4 pixels instead of 36, or F(2x4, 3x3), 24 for 8 pixels.

Tiles of the image are transformed along both axes, and so are the filters, at build time. Each element of a tile is a
GEMM over the channels, whose results are transformed back. A block of tiles stays in the L2 cache from the image to
the epilogue: its channels are taken in slices, which also keeps sums short, and its columns in bands, for each of which
data is transformed again. Windows of volumes are sums over their planes: each tap along depth adds channels to the
product. Groups are taken one after the other: the filters of one stay in the L1 cache for all tiles.

Along an axis, F(2) only adds and halves: the errors of F(2x2) against float64 are 0.8 to 1.3 times those of a direct
convolution, for 16 to 1024 channels (``benchmarks.cpu.errors``). F(4) has interpolation points 0, +-5/8, +-3/2 and
infinity, whose rounding errors are a quarter of those of the usual 0, +-1, +-2 (Barabasz et al., arXiv:1803.10986).
Adding up the products of a tile makes most of the error, since transforms back multiply it: exact sums would leave less
than a direct convolution's. So sums are short, and those of 64 channels are added up before they are added to those of
others. With F(4) along one axis and F(2) along the other errors are then up to 1.6 times onnxruntime's direct ones, and
below 1e-6 of the greatest output; along both, 3 to 5 times, with sums of any length: no layer gets that unless the
Target says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.expressions import CTYPES
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import Operation, spatial
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_blocks
from packager.backends.ccompiler.gemm.loop_nest import packer
from packager.backends.ccompiler.gemm.tiles import registers_of, tiles_of
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.operations import Window
    from packager.bundle.arrays import Array


# Interpolation points beside 0 and infinity, by the outputs along an axis: each with both signs.
POINTS = {2: (1.0,), 4: (5 / 8, 3 / 2)}


@dataclass(frozen=True)
class Variant:
    """F(tall x wide, 3x3): a tile has so many outputs along lines and along columns.

    At most ``tiles``, ``channels`` and ``columns`` are taken at once: their buffers are on the stack. A sum has at most
    ``sum`` steps before it is added to others: transforms back multiply its rounding errors.
    """

    tall: int
    wide: int
    tiles: int
    channels: int
    columns: int
    sum: int

    @property
    def values(self) -> int:
        """The elements of a transformed tile."""
        return (self.tall + 2) * (self.wide + 2)

    def tiles_of(self, lines: int, places: int) -> int:
        """Return the tiles of a plane."""
        return -(-lines // self.tall) * -(-places // self.wide)


# What loads a vector of an image as floats, by its type. Transformed filters are floats.
LOADS = {"float32": "pk_load_f32", "float16": "pk_load_f16"}
# By the side that the Target allows: of 2, a tile may have 4 outputs along one axis.
VARIANTS = {
    2: (Variant(2, 2, 14, 64, 64, 32), Variant(2, 4, 9, 64, 64, 16), Variant(4, 2, 9, 64, 64, 16)),
    4: (Variant(4, 4, 12, 32, 32, 32),),
}
# What an element of the filters costs to read, in tiles whose products with it take as long: within a network it comes
# from far, and planes of 14 x 14 are faster by tiles of 2 x 2.
READ = 32
# Transformed filters are 1.8 times as large, or four times. Those that do not stay in the shared cache come from memory
# in every run: worth it for the products of many tiles.
LEAST_TILES = 4
MANY_TILES = 32
HELD = 4 << 20
# The pixels of a result, as a part of those of its tiles, below which groups of one panel are faster computed directly.
LEAST_USED = 0.8


def find_winograd(anchor: Operation, window: Window, groups: int, side: int) -> Variant | None:
    """Return the variant if it is faster for a convolution over NHWC or NDHWC; ``side`` is 0 for none.

    ``window`` has three axes: along depth it may have any taps, which are further channels to the product. ``groups``
    are those that are computed apart.
    """
    data, weight = anchor.uses
    outer, inner = int(weight.shape[0]) // groups, int(data.shape[-1]) // groups
    if not side or data.tensor.dtype not in LOADS or anchor.result.dtype != data.tensor.dtype or len(data.shape) < 4:
        return None
    depth, *sides = spatial(anchor.result.shape, 3)[1:-1]
    if not isinstance(depth, int) or not all(isinstance(each, int) for each in sides):
        return None
    if window.size[1:] != (3, 3) or {*window.strides[1:], *window.dilation[1:]} != {1}:
        return None
    if min(inner, outer) < COLUMNS:
        return None

    def is_worth_it(variant: Variant) -> bool:
        size = variant.values * window.size[0] * inner * _padded(outer) * groups * 4
        tiles = variant.tiles_of(*sides)
        is_used = groups == 1 or inner > COLUMNS or prod(sides) >= LEAST_USED * tiles * variant.tall * variant.wide
        return is_used and depth * tiles >= (LEAST_TILES if size <= HELD else MANY_TILES)

    fitting = (each for each in VARIANTS[side] if _even(inner, each.channels) is not None and is_worth_it(each))
    return min(fitting, key=lambda each: each.values * (depth * each.tiles_of(*sides) + READ), default=None)


def add_winograd(
    stage: Stage,
    anchor: Operation,
    window: Window,
    group: GroupDraft,
    variant: Variant,
    groups: int,
    filters_of: Callable[[Array], Array],
) -> None:
    """Add the function of a stage to its group. Raises CannotRender.

    ``filters_of`` returns filters of ``groups`` groups for the weights.
    """
    data, weight = anchor.uses
    kind, taps = KINDS["float32"], window.size[0]
    batch, depth, height, width, channels = spatial(data.shape, 3)
    inner, outer = int(channels) // groups, int(stage.inner)
    planes, lines, places = spatial(anchor.result.shape, 3)[1:4]
    tall, wide = ceil_div(lines, variant.tall), ceil_div(places, variant.wide)
    blocks = even_blocks(product((batch, planes, tall, wide)), variant.tiles)
    columns = outer // groups
    padded = _padded(columns)
    # Taps along depth are taken together where a slice has room for the channels of several.
    together = max(1, min(taps, variant.channels // inner))
    slice_ = together * inner if together > 1 else _even(inner, variant.channels) or inner
    band = min(padded, variant.columns)
    bands = ceil_div(padded, band)
    draft = group.function("winograd")
    x = draft.tensor(data.tensor, False)
    layout = f"winograd{variant.tall}x{variant.wide}x{COLUMNS}" + (f"g{groups}" if groups > 1 else "")

    def pack(array: Array) -> Array:
        return transform(filters_of(np.asarray(array)), variant, groups)

    w = draft.packed(group.packing(group.constant(weight), layout, pack), "float")
    values = {
        "x": x,
        "w": w,
        "stored": CTYPES[data.tensor.dtype].stored,
        "load": LOADS[data.tensor.dtype],
        "program": draft.program(stage, "pk_round_half(sums[j])" if data.tensor.dtype == "float16" else "sums[j]"),
        "variant": variant,
        "high": variant.tall + 2,
        "long": variant.wide + 2,
        "values": variant.values,
        "depth": c_text(depth),
        "height": c_text(height),
        "width_of_data": c_text(width),
        "planes": c_text(planes),
        "lines": c_text(lines),
        "places": c_text(places),
        "tall": c_text(tall),
        "wide": c_text(wide),
        "channels": channels,
        "inner": inner,
        "columns": columns,
        "padded": padded,
        "groups": groups,
        "window": window,
        "steps": taps * inner,
        "together": together,
        "block": blocks.room,
        "tile_rows": registers_of(group.machine, kind.name).rows,
        "blocks": c_text(blocks.count),
        "place": blocks.place,
        "slice": slice_,
        "sums": ceil_div(slice_, variant.sum),
        "slices": ceil_div(inner, slice_) if together == 1 else 1,
        "passes": ceil_div(taps, together) * (ceil_div(inner, slice_) if together == 1 else 1),
        "band": band,
        "bands": bands,
        "width": str(band) if columns % band == 0 else f"pk_min_i64({band}, {columns} - left)",
        "lanes": min(COLUMNS, group.machine.vector_bytes // 4),
    }
    # Bands are the outer loop: their filters stay in the L2 cache for all blocks.
    extent = product((groups * bands, blocks.count))
    tiles = tiles_of(group.machine, kind, blocks.counts, columns, band)
    draft.finish("gemm/winograd", extent, values, tiles, product((variant.values, taps, inner, groups * padded)))


def _padded(columns: int) -> int:
    """Return columns in whole panels."""
    return -(-columns // COLUMNS) * COLUMNS


def _even(count: int, most: int) -> int | None:
    """Return how many channels of ``count`` are taken at once, as evenly as possible; whole panels if all are.

    The last ones, which may be fewer, fill a vector. None if no number does: the first of them is 3,727, for F(4x4).
    """
    if count % COLUMNS == 0:
        return -(-count // -(-count // most) // COLUMNS) * COLUMNS
    fitting = (size for size in range(COLUMNS, most + 1) if count <= size or not 0 < count % size < COLUMNS)
    return min(fitting, key=lambda size: (-(-count // size), size), default=None)


def transform(array: Array, variant: Variant, groups: int = 1) -> Array:
    """Return weights [groups * O, ..., 3, 3, I] transformed, as [groups, values, O / 16, ... * I, 16]."""
    outer, inner = array.shape[0], array.shape[-1]
    down: Any = filter_matrix(variant.tall)
    along: Any = filter_matrix(variant.wide)
    filters = np.asarray(array, np.float64).reshape(groups, outer // groups, -1, 3, 3, inner)
    values = np.einsum("ak,gozklc,bl->gabzco", down, filters, along, optimize=True)
    return packer((groups * variant.values, filters.shape[2] * inner, outer // groups), 1)(values.astype(np.float32))


def filter_matrix(side: int) -> Array:
    """Return the filter transform along an axis: it evaluates quadratic polynomials at the points, with its scale."""
    points = np.array([0.0, *(sign * point for point in POINTS[side] for sign in (1, -1))])
    rows = [[p**k / np.prod([p - q for q in points if q != p]) for k in range(3)] for p in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def render_transforms(sources: Sequence[str]) -> list[str]:
    """Return the C of the transforms that these functions call."""
    called = [side for side in POINTS if any(f"pk_winograd_data{side}(" in text for text in sources)]
    return [render("ccompiler/gemm/winograd.h.j2", side=side, points=POINTS[side]).trimmed() for side in called]

"""Winograd convolution F(4x4, 3x3): 36 multiplications for 16 pixels instead of 144.

Tiles of 6x6 pixels are transformed along both axes, and so are the filters, at build time. Each of the 36 elements is a
GEMM over the channels; its results are transformed to tiles of 4x4 pixels. The interpolation points are 0, +-5/8, +-3/2
and infinity: rounding errors are a quarter of those of the usual 0, +-1, +-2. Results are within 1e-5 of the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_blocks, rows_of
from packager.backends.ccompiler.gemm.loop_nest import Product, add_product, packer
from packager.codegen.templates import render

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.operations import Window
    from packager.bundle.arrays import Array

SIDE = 4  # of a tile of the output
VALUES = (SIDE + 2) ** 2
POINTS = (5 / 8, 3 / 2)
# Transformed weights are four times as large: worth it for many tiles and few weights.
LEAST_TILES = 32
LEAST_CHANNELS = 32
MOST_BYTES = 16 << 20
# Channels per inverse transform and epilogue.
CHUNK = 256


def is_winograd(anchor: Operation, window: Window, groups: int) -> bool:
    """Whether Winograd is faster for a convolution over NHWC."""
    data, weight = anchor.uses
    outer, inner = int(weight.shape[0]), int(weight.shape[-1])
    sides = anchor.result.shape[1:-1]
    if data.tensor.dtype != "float32" or groups != 1 or not all(isinstance(side, int) for side in sides):
        return False
    if (window.size, window.strides, window.dilation) != ((3, 3), (1, 1), (1, 1)):
        return False
    tiles = ceil_div(sides[0], SIDE) * ceil_div(sides[1], SIDE)
    return bool(
        tiles >= LEAST_TILES
        and min(inner, outer) >= LEAST_CHANNELS
        and inner % COLUMNS == outer % COLUMNS == 0
        and VALUES * inner * outer * 4 <= MOST_BYTES
    )


def add_winograd(stage: Stage, anchor: Operation, window: Window, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: transform, GEMM, inverse transform. Raises CannotRender."""
    data, weight = anchor.uses
    kind = KINDS["float32"]
    batch, height, width, inner = data.shape
    outer = int(stage.inner)
    lines, places = anchor.result.shape[1:3]
    tall, wide = ceil_div(lines, SIDE), ceil_div(places, SIDE)
    tiles = product((batch, tall, wide))
    values = group.workspace(product((VALUES, tiles, inner)))
    sums = group.workspace(product((VALUES, tiles, outer)))
    common = {
        "height": c_text(height),
        "width": c_text(width),
        "lines": c_text(lines),
        "places": c_text(places),
        "tall": c_text(tall),
        "wide": c_text(wide),
        "tiles": c_text(tiles),
        "inner": inner,
        "outer": outer,
        "top": window.before[0],
        "left": window.before[1],
        "lanes": min(COLUMNS, group.machine.vector_bytes // 4),
    }
    before = group.function("winograd_data")
    names = {"x": before.tensor(data.tensor, False), "values": before.workspace(values, "float", True)}
    before.finish("gemm/winograd_data", product((batch, tall)), {**common, **names})

    draft = group.function("winograd")
    v, m = draft.workspace(values, "float", False), draft.workspace(sums, "float", True)
    w = draft.packed(group.packing(group.constant(weight), f"winograd{COLUMNS}", transform), "float")
    blocks = even_blocks(tiles)
    rows = rows_of(v, f"batch * {c_text(tiles)} + first", inner, inner, kind, blocks)
    sizes = Product(VALUES, blocks, inner, outer, rows, "", target=m)
    add_product(draft, "gemm/product", sizes, stage, anchor, kind, w)

    after = group.function("winograd_result")
    chunk = min(CHUNK, outer)
    program = after.program(stage, "sums[j]")
    names = {"sums": after.workspace(sums, "float", False)}
    count = str(chunk) if outer % chunk == 0 else f"pk_min_i64({chunk}, {outer} - start)"
    after.finish(
        "gemm/winograd_result",
        product((batch, tall)),
        {**common, **names, "program": program, "chunk": chunk, "count": count},
    )


def transform(array: Array) -> Array:
    """Return weights [O, 3, 3, I] transformed, as [36, O / 16, I, 16]."""
    outer, _, _, inner = array.shape
    matrix: Any = filter_matrix()
    values = np.einsum("ak,oklc,bl->abco", matrix, np.asarray(array, np.float64), matrix, optimize=True)
    return packer((VALUES, inner, outer), 1)(values.astype(np.float32).reshape(VALUES, inner, outer))


def filter_matrix() -> Array:
    """Return the filter transform, which evaluates quadratic polynomials at the six points, with its scale."""
    points = np.array([0.0, POINTS[0], -POINTS[0], POINTS[1], -POINTS[1]])
    rows = [[p**k / np.prod([p - q for q in points if q != p]) for k in range(3)] for p in points]
    return np.array([*rows, [0.0, 0.0, 1.0]])


def render_transforms(sources: Sequence[str]) -> list[str]:
    """Return the C of the transforms, if one of these functions calls them."""
    if not any("pk_winograd_" in source for source in sources):
        return []
    return [render("ccompiler/gemm/winograd.h.j2", a=POINTS[0], b=POINTS[1]).trimmed()]

"""conv1d and conv2d with channels last and constant weights, as implicit GEMM: a row is the window of one pixel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS, Kind
from packager.backends.ccompiler.core.operations import Operation, Window, planar, window_of
from packager.backends.ccompiler.core.shapes import Shape, c_text, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import Blocks, Data, even_blocks, gathered, rows_of
from packager.backends.ccompiler.gemm.loop_nest import Product, add_product, packer, pad
from packager.backends.ccompiler.gemm.row_windows import windows_in_lines
from packager.backends.ccompiler.ops.winograd import add_winograd, is_winograd

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


def groups_of(anchor: Operation) -> int:
    """Return the groups of a convolution."""
    return int(anchor.attributes.groups)


def add_conv2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data, weight = anchor.uses
    argument = group.constant(weight)
    window, groups, kind = window_of(weight.shape[1:-1], anchor.attributes), groups_of(anchor), KINDS[data.tensor.dtype]
    if group.winograd and is_winograd(anchor, window, groups):
        add_winograd(stage, anchor, window, group)
        return
    out_channels, in_channels = int(weight.shape[0]) // groups, int(weight.shape[-1])
    line, lines = in_channels * window.size[1], window.size[0]

    draft = group.function("conv2d")
    x = draft.tensor(data.tensor, False)
    blocks, rows, setup = _rows(x, planar(data.shape), planar(anchor.result.shape), window, groups, kind)
    layout = f"ohwi{COLUMNS}" + (f"p{kind.pair}" if kind.pair > 1 else "")
    stretch = rows.stretch * kind.pair or line  # padded to whole steps
    if stretch != line:
        layout += "l"
    pack = _packer((groups, out_channels, lines, line), stretch, kind.pair)
    w = draft.packed(group.packing(argument, layout, pack), kind.weight)
    depth = lines * stretch
    offset = f"batch * {out_channels} + " if groups > 1 else ""
    sizes = Product(groups, blocks, depth, out_channels, rows, "first + r", offset, setup, shared=groups > 1)
    add_product(draft, "gemm/product", sizes, stage, anchor, kind, w)


def _rows(x: str, data: Shape, result: Shape, window: Window, groups: int, kind: Kind) -> tuple[Blocks, Data, str]:
    """Return the blocks of pixels, where their windows are in memory, and declarations."""
    blocks, channels, in_channels = even_blocks(product(result[:3])), data[3], int(data[3]) // groups
    if window.is_place and groups == 1:
        return blocks, rows_of(x, "first", channels, channels, kind, blocks), ""
    lines = windows_in_lines(x, data, result, window, kind) if groups == 1 else None
    if lines is not None:
        return *lines, ""
    fields = [*data[1:3], *result[1:3], channels, in_channels, window.size[1]]
    fields += [*window.strides, *window.dilation, *window.padding[:2]]
    setup = f"const pk_window_t window = {{ {', '.join(map(c_text, fields))} }};"
    depth = in_channels * window.size[0] * window.size[1]
    taken = f"pk_min_i64(taken * {kind.pair}, {depth} - done * {kind.pair})"
    source = f"{x} + batch * {in_channels}" if groups > 1 else x
    gather = f"pk_gather_windows_{kind.name}(a, {source}, &window, apart, first, count, done * {kind.pair}, {taken});"
    return blocks, gathered(gather, blocks, kind.unit), setup


def _packer(shape: tuple[int, int, int, int], stretch: int, pair: int) -> Callable[[Array], Array]:
    """Return the function that packs [groups, O, height, width x I]; its result is a view if nothing is padded.

    The last axis gets zeros up to ``stretch``.
    """
    groups, outer, lines, _ = shape
    inner = packer((groups, lines * stretch, outer), pair)

    def pack(array: Array) -> Array:
        if pair > 1 or outer % COLUMNS:
            padded = pad(np.asarray(array).reshape(shape), (1, 1, 1, stretch))
            return inner(padded.reshape(groups, outer, lines * stretch).transpose(0, 2, 1))
        # The weights are a permuted view: reshaping window and channels to one axis would copy them.
        split = np.asarray(array).reshape(groups, outer // COLUMNS, COLUMNS, *array.shape[1:])
        return np.moveaxis(split, 2, -1)

    return pack

"""Convolutions with channels last and constant weights, as implicit GEMM: a row is the window of one pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import Operation, spatial, window_of
from packager.backends.ccompiler.core.shapes import product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import BLOCK
from packager.backends.ccompiler.gemm.copies import Convolution
from packager.backends.ccompiler.gemm.dots import are_dots, dot_packer, dots_of
from packager.backends.ccompiler.gemm.loop_nest import Product, add_product, packer, pad
from packager.backends.ccompiler.gemm.narrow import find_narrow, narrow_of, narrow_packer, narrow_rows
from packager.backends.ccompiler.gemm.tiles import BAND
from packager.backends.ccompiler.gemm.windows import Packing, find_rows
from packager.backends.ccompiler.ops.winograd import Variant, add_winograd, find_winograd

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Steps of a row that are few for a block: those of windows of a few channels.
SHORT = 160


def groups_of(anchor: Operation) -> int:
    """Return the groups of a convolution."""
    return int(anchor.attributes.groups)


def winograd_of(anchor: Operation, side: int) -> Variant | None:
    """Return the variant of Winograd's algorithm for a convolution; ``side`` is the one that is allowed, 0 for none."""
    outer = int(anchor.uses[1].shape[0])
    conv = _convolution(anchor)
    if find_narrow(conv, outer):
        return None
    return find_winograd(anchor, conv.window, conv.groups // _groups_together(conv.groups, outer), side)


def _convolution(anchor: Operation) -> Convolution:
    """Return a convolution with three spatial axes."""
    data, weight = anchor.uses
    window = window_of(weight.shape[1:-1], anchor.attributes, 3)
    kind = KINDS[data.tensor.dtype]
    return Convolution(spatial(data.shape, 3), spatial(anchor.result.shape, 3), window, groups_of(anchor), kind)


def add_conv2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data, weight = anchor.uses
    argument = group.constant(weight)
    conv = _convolution(anchor)
    kind, outer = conv.kind, int(weight.shape[0])
    together = _groups_together(conv.groups, outer)
    groups = conv.groups // together

    def filters_of(array: Array) -> Array:
        return _block_diagonal(np.asarray(array), together, outer // conv.groups)

    winograd = winograd_of(anchor, group.winograd)
    if winograd is not None:
        add_winograd(stage, anchor, conv.window, group, winograd, groups, filters_of)
        return
    draft = group.function("conv2d")
    x = draft.tensor(data.tensor, False)
    if are_dots(conv, outer):
        rows = find_rows(x, conv, 1)
        packing = rows.packing
        w = draft.packed(group.packing(argument, f"oi{packing.layout}", dot_packer(packing)), kind.weight)
        depth = packing.slices * packing.stretches * packing.length
        sizes = Product(1, rows.blocks, depth, outer, rows.data, rows.blocks.row, "", rows.setup, other=dots_of(outer))
    elif narrow := find_narrow(conv, outer):
        rows = narrow_rows(x, conv, narrow)
        layout = f"nti{narrow.inner}g{narrow.groups}o"
        w = draft.packed(group.packing(argument, layout, narrow_packer(narrow)), kind.weight)
        depth = rows.packing.stretches * rows.packing.length
        other = narrow_of(group.machine, narrow, rows.data.groups)
        place = (rows.data, rows.blocks.row, f"batch * {narrow.columns} + ", rows.setup)
        panels = conv.groups // narrow.groups
        sizes = Product(panels, rows.blocks, depth, narrow.columns, *place, shared=True, other=other)
    else:
        out_channels = outer // groups
        rows = find_rows(x, replace(conv, groups=groups, block=_block(conv, together, out_channels)))
        packing = rows.packing
        layout = f"ohwi{COLUMNS}{packing.layout}" + (f"p{kind.pair}" if kind.pair > 1 else "")
        layout += f"g{together}" if together > 1 else ""
        inner = _packer(groups, out_channels, packing, kind.pair)

        def pack(array: Array) -> Array:
            return inner(filters_of(array))

        w = draft.packed(group.packing(argument, layout, pack), kind.weight)
        depth = packing.slices * packing.stretches * -(-packing.length // kind.pair) * kind.pair
        place = (rows.data, rows.blocks.row, f"batch * {out_channels} + " if groups > 1 else "", rows.setup)
        sizes = Product(groups, rows.blocks, depth, out_channels, *place, shared=groups > 1)
    add_product(draft, "gemm/product", sizes, stage, anchor, kind, w)


def _block(conv: Convolution, together: int, columns: int) -> int:
    """Return the most rows of a block: of short rows more, or finding them would take as long as multiplying."""
    is_short = int(product(conv.window.size)) * conv.channels * together <= SHORT and columns <= 2 * BAND
    return 2 * BLOCK if is_short else BLOCK


def _groups_together(groups: int, outer: int) -> int:
    """Return the groups that are computed as one, whose filters have zeros for the channels of other groups.

    A panel of weights has 16 columns anyway: so many groups fill it, with as many products as each of them would cost.
    """
    most = max(1, COLUMNS * groups // outer)
    return max(count for count in range(1, most + 1) if groups % count == 0)


def _block_diagonal(array: Array, together: int, outer: int) -> Array:
    """Return filters [groups * outer, ..., I] as those of so many groups at once, with I * ``together`` channels."""
    if together == 1:
        return array
    inner = array.shape[-1]
    whole = np.zeros((*array.shape[:-1], together, inner), array.dtype)
    for filters in range(array.shape[0]):
        whole[filters, ..., filters // outer % together, :] = array[filters]
    return whole.reshape(*array.shape[:-1], together * inner)


def _packer(groups: int, outer: int, packing: Packing, pair: int) -> Callable[[Array], Array]:
    """Return the function that packs [groups * O, ..., I]; its result is a view if nothing is padded."""
    slices, stretches, length = packing.slices, packing.stretches, packing.length
    depth = slices * stretches * -(-length // pair) * pair
    inner = packer((groups, depth, outer), pair)

    def pack(array: Array) -> Array:
        if pair > 1 or outer % COLUMNS or (slices > 1 and array.shape[-1] % length):
            each = np.asarray(array).reshape(groups * outer, stretches, -1)
            whole = pad(each, (1, 1, length)).reshape(groups, outer, stretches, slices, length)
            steps = pad(whole, (1, 1, 1, 1, pair)).transpose(0, 3, 2, 4, 1)
            return inner(steps.reshape(groups, depth, outer))
        # The weights are a permuted view: reshaping window and channels to one axis would copy them.
        taps = array.shape[1:-1]
        split = np.asarray(array).reshape(groups, outer // COLUMNS, COLUMNS, *taps, slices, -1)
        return np.moveaxis(np.moveaxis(split, -2, 2), 3, -1)

    return pack

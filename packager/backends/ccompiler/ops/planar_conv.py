"""Convolutions of planes: between two permutations, to channels last and back, the data stays as it is, NCHW.

Rows of the product are filters, read where they are, columns the pixels of an image. Of 1x1 convolutions a band of
pixels is packed once for all filters, a copy of contiguous vectors, where channels last would take a transposition of
data and of results. Of others, with windows of few channels, lines are staged once for all taps and filters
(``planes``); groups are products of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.moves import Permute
from packager.backends.ccompiler.core.operations import (
    ANCHORS,
    CONVOLUTIONS,
    PLANAR_CONV,
    Operand,
    Operation,
    Tensor,
    Use,
    Window,
    spatial,
    window_of,
)
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, ceil_div, equal, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_blocks, sum_of
from packager.backends.ccompiler.gemm.planes import PlaneBlocks, find_plane_blocks
from packager.backends.ccompiler.gemm.tiles import BAND, product_rows, registers_of, tiles_of
from packager.backends.ccompiler.ops.depthwise_lines import DepthwisePlanes, add_depthwise_planes, find_planes

# The most elements of a packed band of pixels, 64 KiB of the stack, and its most channels, of half as many pixels.
PACKED, MOST_CHANNELS = 16384, 512
# The least part of the columns of whole panels that are pixels, or rows of pixels waste less.
LEAST_USED = 0.85
# What it takes to stage an element, and to transpose one, in vectors of products.
STAGED, TURNED = 0.3, 0.4


@dataclass(frozen=True)
class PlanarConv:
    """A convolution of planes: its groups, and how it is computed; None for those of single pixels."""

    groups: int
    way: PlaneBlocks | DepthwisePlanes | None


def find_planar(
    operations: Sequence[Operation], results: Sequence[Tensor], is_winograd: Callable[[Operation], bool]
) -> list[Operation]:
    """Return operations with convolutions of NCHW as it is, in place of those between permutations.

    ``is_winograd`` says whether a convolution with channels last takes Winograd's way, which is faster.

    What follows a convolution before its result is permuted back is then computed on planes: operators with operands
    for each channel, numbers, and tensors that are themselves permuted to channels last.
    """
    made = {operation.result.index: operation for operation in operations}
    kept = {tensor.index for tensor in results}
    planar: dict[int, Operation] = {}  # by the result of the operation that they take the place of
    dropped: set[int] = set()
    for conv in operations:
        is_planar = conv.name in CONVOLUTIONS and (_is_place(conv) or (_way(conv) and not is_winograd(conv)))
        chain = _until_permuted(conv, operations, kept) if is_planar else []
        found = _planar(chain, made) if chain else None
        if found:
            planar |= zip((operation.result.index for operation in chain[:-2]), found, strict=False)
            planar[chain[-1].result.index] = found[-1]
            dropped.add(chain[-2].result.index)
    if not planar:
        return list(operations)
    changed = [planar.get(each.result.index, each) for each in operations if each.result.index not in dropped]
    return _read(changed, kept)


def _until_permuted(conv: Operation, operations: Sequence[Operation], kept: set[int]) -> list[Operation]:
    """Return a convolution, all that reads it or what they make, and the permutation to channels first of what the last
    one makes; nothing if something else needs any of that."""
    chain, inside, rank = [conv], {conv.result.index}, len(conv.result.shape)
    for operation in operations:
        if not inside.intersection(use.tensor.index for use in operation.uses):
            continue
        if operation.attributes == Permute((0, rank - 1, *range(1, rank - 1))):
            readers = [each for each in operations if inside.intersection(use.tensor.index for use in each.uses)]
            whole = [*chain[1:], operation] == readers and not inside & kept
            return [*chain, operation] if whole and operation.uses[0].tensor is chain[-1].result else []
        if operation.name in ANCHORS or operation.result.shape != conv.result.shape:
            return []
        chain.append(operation)
        inside.add(operation.result.index)
    return []


def _read(operations: Sequence[Operation], kept: set[int]) -> list[Operation]:
    """Return operations without permutations that nothing reads any more."""
    read = kept | {use.tensor.index for operation in operations for use in operation.uses}
    return [each for each in operations if each.result.index in read or not isinstance(each.attributes, Permute)]


def _window(conv: Operation) -> Window:
    return window_of(conv.uses[1].shape[1:-1], conv.attributes, 3)


def _is_float(conv: Operation) -> bool:
    """Whether a convolution with channels last is one of float32, with filters that are a tensor of the partition."""
    data, weight = conv.uses
    is_last = conv.attributes.data_layout in ("NWC", "NHWC", "NDHWC")
    return is_last and {conv.result.dtype, data.tensor.dtype} == {"float32"} and weight.tensor.argument is not None


def _is_place(conv: Operation) -> bool:
    """Whether a convolution of float32 is one of single pixels whose planes fill panels."""
    weight, pixels = conv.uses[1], product(conv.result.shape[1:-1])
    if not _is_float(conv) or conv.attributes.groups != 1 or not _window(conv).is_place:
        return False
    outer, channels = weight.shape[0], weight.shape[-1]
    fills = not isinstance(pixels, int) or pixels >= LEAST_USED * COLUMNS * ceil_div(pixels, COLUMNS)
    return fills and isinstance(outer, int) and isinstance(channels, int) and channels <= MOST_CHANNELS


def _way(conv: Operation) -> PlaneBlocks | DepthwisePlanes | None:
    """Return how planes are convolved with a window; None if it is too large, of symbolic extents, or slower."""
    extent, out = (spatial(shape, 3)[1:-1] for shape in (conv.uses[0].shape, conv.result.shape))
    weight = conv.uses[1].shape
    if not _is_float(conv) or not all(isinstance(each, int) for each in (*extent, *out, *weight)):
        return None
    if product(weight[1:]) > MOST_CHANNELS:
        return None
    groups = int(conv.attributes.groups)
    if groups > 1 and {groups, groups * int(weight[-1])} == {int(weight[0])}:
        return find_planes(_window(conv), extent, out)
    found = find_plane_blocks(_window(conv), int(weight[-1]), extent, out)
    return found if found is not None and _is_faster(found, groups, int(weight[0])) else None


def _is_faster(blocks: PlaneBlocks, groups: int, filters: int) -> bool:
    """Whether columns that are no pixels, and staging, take less time than two transpositions for channels last.

    Groups of few filters are faster than any product of theirs with channels last. Times are those of vectors of
    products, for a pixel of the result.
    """
    if groups > 1 and filters // groups < COLUMNS:
        return True
    depth, pixels = blocks.channels * int(product(blocks.window.size)), int(product(blocks.out))
    wasted = depth * filters / COLUMNS * (1 / blocks.used - 1) + STAGED * groups * blocks.staged_of_all / pixels
    return wasted < TURNED * (filters + groups * blocks.channels * int(product(blocks.extent)) / pixels)


def _planar(chain: Sequence[Operation], made: Mapping[int, Operation]) -> list[Operation]:
    """Return a chain, from a convolution to a permutation back, as operations on [N, C, pixels]; none if that needs
    more than views."""
    conv, *after, last = chain
    data = _planes(conv.uses[0], made)
    if data is None:
        return []
    outer = conv.uses[1].shape[0]
    shape = Shape((conv.result.shape[0], outer, product(conv.result.shape[1:-1])))
    weights = Use(conv.uses[1].tensor, Shape((outer, product(conv.uses[1].shape[1:]))))
    planar = PlanarConv(int(conv.attributes.groups), None if _is_place(conv) else _way(conv))
    operation = replace(conv, name=PLANAR_CONV, operands=(weights, data), attributes=planar)
    operations = [replace(operation, result=replace(conv.result, shape=shape))]
    inside = {conv.result.index: operations[0].result}
    for operation in after:
        operands = [_operand(each, inside, operation.result.shape, made) for each in operation.operands]
        known = tuple(operand for operand in operands if operand is not None)
        if len(known) < len(operands):
            return []
        tensor = replace(operation.result, shape=shape)
        inside[operation.result.index] = tensor
        operations.append(replace(operation, operands=known, result=tensor))
    return [*operations[:-1], replace(operations[-1], result=replace(last.result, shape=shape))]


def _operand(
    operand: Operand, inside: Mapping[int, Tensor], shape: Shape, made: Mapping[int, Operation]
) -> Operand | None:
    """Return an operand of an operator with channels last as it is on planes; None if it has to be permuted."""
    if not isinstance(operand, Use):
        return operand
    if operand.tensor.index in inside:
        planes = inside[operand.tensor.index]
        return Use(planes, planes.shape) if operand.shape == shape else None
    if operand.shape == shape:
        return _planes(operand, made)
    channel = operand.shape[-1] if operand.shape else 1
    return Use(operand.tensor, Shape((channel, 1))) if equal(product(operand.shape), channel) else None


def _planes(use: Use, made: Mapping[int, Operation]) -> Use | None:
    """Return what a permutation to channels last reads, as [N, C, pixels]; None if the operand is something else."""
    before = made.get(use.tensor.index)
    rank = len(use.shape)
    if equal(use.shape[-1], 1) and (before is None or not isinstance(before.attributes, Permute)):
        return Use(use.tensor, Shape((use.shape[0], 1, product(use.shape[1:-1]))))
    if before is None or before.attributes != Permute((0, *range(2, rank), 1)) or use.shape != before.result.shape:
        return None
    source = before.uses[0]
    return Use(source.tensor, Shape((*source.shape[:2], product(source.shape[2:]))))


def add_planar_conv(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    way = anchor.attributes.way
    if isinstance(way, DepthwisePlanes):
        add_depthwise_planes(stage, anchor, group, way)
        return
    if way is not None:
        _add_windows(stage, anchor, group)
        return
    weights, data = anchor.uses
    kind = KINDS["float32"]
    batch, channels, pixels = data.shape
    depth, outer = int(channels), int(weights.shape[0])
    draft = group.function("planar_conv")
    x = draft.tensor(data.tensor, False)
    w = draft.tensor(weights.tensor, False)
    band = BAND if depth * BAND <= PACKED else BAND // 2
    blocks, bands = even_blocks(outer), ceil_div(pixels, band)
    tile_rows = product_rows(group.machine, kind.name, blocks.counts, depth)
    most = band if not isinstance(pixels, int) else min(band, ceil_div(pixels, COLUMNS) * COLUMNS)
    values = {
        "program": draft.program(stage, f"c[r * {most + COLUMNS} + j]"),
        "result": draft.tensor(anchor.result, True) if not stage.after and not stage.placed else "",
        "x": x,
        "w": w,
        "pixels": c_text(pixels),
        "outer": outer,
        "depth": depth,
        "blocks": blocks.count,
        "place": blocks.place,
        "room": blocks.room,
        "tile_rows": tile_rows,
        "bands": c_text(bands),
        "band": band,
        "panel": COLUMNS,
        "most": most,
        "sum": sum_of(kind)[0],
        "sums": ceil_div(depth, sum_of(kind)[0]),
    }
    tiles = tiles_of(group.machine, kind, blocks.counts, pixels, band, most=tile_rows)
    near = frozenset(replace(tile, near=True) for tile in tiles if tile.panels * COLUMNS <= band)
    extent: Extent = product((batch, bands, blocks.count))
    draft.finish("gemm/planar_conv", extent, values, near)


def _add_windows(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a convolution with a window. Raises CannotRender."""
    weights, data = anchor.uses
    planar, kind = anchor.attributes, KINDS["float32"]
    planes, groups = planar.way, planar.groups
    batch, filters = anchor.result.shape[0], int(anchor.result.shape[1])
    depth, outer = int(weights.shape[1]), filters // groups
    blocks = even_blocks(outer)
    draft = group.function("planar_conv")
    values = {
        "program": draft.program(stage, f"c[r * {planes.columns} + l * {planes.pitch} + j]"),
        "x": draft.tensor(data.tensor, False),
        "w": draft.tensor(weights.tensor, False),
        "window": planes.window,
        "out": planes.out,
        "lines": planes.lines,
        "places": planes.places,
        "pitch": planes.pitch,
        "tops": planes.tops,
        "parts": planes.parts,
        "staged": planes.staged,
        "planes": planes.fields,
        "image": planes.channels * int(product(planes.extent)),
        "filters": filters,
        "outer": outer,
        "groups": groups,
        "depth": depth,
        "blocks": blocks.count,
        "place": blocks.place,
        "room": blocks.room,
        "tile_rows": registers_of(group.machine, kind.name).rows,
        "most": planes.columns,
        "sum": sum_of(kind)[1],
    }
    tiles = tiles_of(group.machine, kind, blocks.counts, None, BAND)
    near = frozenset(replace(tile, near=True) for tile in tiles)
    extent: Extent = product((batch, planes.out[0], planes.tops, planes.parts, groups, blocks.count))
    draft.finish("gemm/planar_windows", extent, values, near)

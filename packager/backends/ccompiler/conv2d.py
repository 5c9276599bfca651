"""conv2d over NCHW with constant weights: places of the output are the rows of a tile, output channels its columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.dense import pad, total_value
from packager.backends.ccompiler.expressions import DTYPES
from packager.backends.ccompiler.functions import GroupDraft
from packager.backends.ccompiler.graph import CannotRender, Operation
from packager.backends.ccompiler.program import make_program
from packager.backends.ccompiler.shapes import Extent, c_text, ceil_div, plain, product
from packager.backends.ccompiler.stages import Stage
from packager.backends.ccompiler.tiles import COLUMNS, KINDS, Kind, choose_tiling

if TYPE_CHECKING:
    from packager.primitives import Array

# Places of the output that one look at the weights is for.
BLOCK = 48
# What is summed before the next tile: few enough channels for the TLB, each on a page of its own, and few enough steps
# for their weights to stay in the first-level cache.
CHANNELS = 64
STEPS = 512


@dataclass(frozen=True)
class Window:
    """The attributes of a convolution: [vertical, horizontal], padding also [top, left, bottom, right]."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def is_padded(self) -> bool:
        """Whether it reads beyond the edges."""
        return any(self.padding)


def window_of(size: Any, attributes: Any) -> Window:
    """Return the window of TVM's attributes of a convolution or a pooling."""
    top, left, bottom, right = (int(value) for value in attributes.padding)
    vertical, horizontal = (tuple(int(value) for value in pair) for pair in (attributes.strides, attributes.dilation))
    return Window((int(size[0]), int(size[1])), vertical, horizontal, (top, left, bottom, right))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Image:
    """The data as a tile reads it: in a workspace or, if that is None, where it is; a plane's height and width."""

    workspace: int | None
    height: Extent
    width: Extent
    strides: tuple[int, int]  # from one place of the output to the next

    @property
    def plane(self) -> Extent:
        """Elements of a channel."""
        return product((self.height, self.width))


def add_conv2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: padding where it is needed, then the convolution."""
    data, weight = anchor.uses
    argument = weight.tensor.argument
    if argument is None or argument not in group.graph.constants:
        raise CannotRender("conv2d with weights that are no constant")
    window, groups, kind = window_of(weight.shape[2:], anchor.attributes), groups_of(anchor), KINDS[data.tensor.dtype]
    out_channels, in_channels = int(weight.shape[0]) // groups, int(weight.shape[1])
    channels, panels = ceil_div(in_channels, kind.pair), ceil_div(out_channels, COLUMNS)
    image = prepare(anchor, window, kind, groups, group)

    draft = group.function("conv2d")
    x = (
        draft.tensor(data.tensor, False)
        if image.workspace is None
        else draft.workspace(image.workspace, kind.data, False)
    )
    layout = f"oihw{COLUMNS}" + (f"p{kind.pair}" if kind.pair > 1 else "")
    pack = packer((groups, out_channels, in_channels, *window.size), kind.pair)
    w = draft.packed(group.packing(argument, layout, pack), kind.weight)
    tiling = choose_tiling(group.machine, kind, stage.inner, out_channels, window.size)
    block, bands = _block(tiling.rows, stage.inner), ceil_div(out_channels, tiling.columns)
    blocks = ceil_div(stage.inner, block)
    step = window.size[0] * window.size[1] * COLUMNS * kind.pair
    program = make_program(
        stage.after,
        inner=stage.inner,
        given=[(anchor.result, total_value(anchor.result, f"turned[c * {block} + j]"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    draft.finish(
        "conv2d",
        product((data.shape[0], groups, bands, blocks)),
        {
            "program": program,
            "kind": kind,
            "x": x,
            "w": w,
            "plane": c_text(image.plane),
            "line": c_text(product((image.width, window.dilation[0]))),
            "place": window.dilation[1],
            "offset": _offset(image, window, anchor),
            "channels": channels,
            "chunk": min(channels, CHANNELS, max(1, STEPS // math.prod(window.size))),
            "step": step,
            "cases": tiling.cases(),
            "tile_rows": tiling.rows,
            "tile_columns": tiling.columns,
            "groups": groups,
            "out_channels": out_channels,
            "places": c_text(stage.inner),
            "block": block,
            "blocks": c_text(blocks),
            "bands": bands,
            "panels": panels,
            "panel": channels * step,
            "band_panels": tiling.columns // COLUMNS,
        },
        frozenset(tiling.tiles),
    )


def groups_of(anchor: Operation) -> int:
    """Return the groups of a convolution."""
    return int(anchor.attributes.groups)


def _block(rows: int, places: Extent) -> int:
    """Return how many places a block has: whole tiles, and a multiple of 4, which is how it is transposed."""
    unit = math.lcm(rows, 4)
    most = ceil_div(BLOCK, unit) * unit
    return min(most, ceil_div(places, unit) * unit) if isinstance(places, int) else int(most)


def _offset(image: Image, window: Window, anchor: Operation) -> str:
    """Return where in a plane of the data the window of place ``p`` of the output begins."""
    if window.size == (1, 1) and image.strides == (1, 1):
        return "p"  # places follow each other in the data too
    line, width = c_text(product((image.width, image.strides[0]))), c_text(anchor.result.shape[3])
    return f"p / {width} * {line} + p % {width} * {image.strides[1]}"


def prepare(anchor: Operation, window: Window, kind: Kind, groups: int, group: GroupDraft) -> Image:
    """Copy the data with its padding, in the tile's element type, or only those places that a 1x1 window meets.

    Nothing is done where the data can be read as it is.
    """
    data = anchor.uses[0]
    batch, channels, height, width = data.shape
    top, left, bottom, right = window.padding
    strides, taken = window.strides, (1, 1)
    tall, wide, copied = height + top + bottom, width + left + right, width
    if not window.is_padded and window.size == (1, 1) and strides != (1, 1):
        strides, taken = taken, strides
        tall, wide = anchor.result.shape[2:]
        copied = wide
    elif not window.is_padded and data.tensor.dtype in ("float32", "int32"):
        return Image(None, height, width, strides)
    image_height, image_width = plain(tall), plain(wide)
    per_group = ceil_div(channels // groups, kind.pair)
    workspace = group.workspace(product((batch, groups, per_group, image_height, image_width)), 4)
    draft = group.function("pad")
    draft.finish(
        "pad",
        product((batch, groups, per_group)),
        {
            "stored": DTYPES[data.tensor.dtype].stored,
            "type": kind.data,
            "pair": kind.pair,
            "source": draft.tensor(data.tensor, False),
            "target": draft.workspace(workspace, kind.data, True),
            "value": {"f16": "pk_widen(x[at])", "i8": "pk_pair(x[at], second ? second[at] : 0)"}.get(
                kind.name, f"({kind.data})x[at]"
            ),
            "channels": channels // groups,
            "steps": per_group,
            "height": c_text(height),
            "width": c_text(width),
            "copied": c_text(copied),
            "tall": c_text(image_height),
            "wide": c_text(image_width),
            "top": top,
            "left": left,
            "stride_y": taken[0],
            "stride_x": taken[1],
        },
    )
    return Image(workspace, image_height, image_width, strides)


def packer(shape: tuple[int, int, int, int, int], pair: int) -> Callable[[Array], Array]:
    """Return the function that packs [groups, O, I, height, width]; its result is a view if nothing is padded."""

    def pack(array: Array) -> Array:
        groups, outer, inner, height, width = shape
        padded = pad(np.asarray(array).reshape(shape), (1, COLUMNS, pair, 1, 1))
        split = padded.reshape(groups, -(-outer // COLUMNS), COLUMNS, -(-inner // pair), pair, height, width)
        return split.transpose(0, 1, 3, 5, 6, 2, 4)

    return pack

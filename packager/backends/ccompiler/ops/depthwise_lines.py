"""Depthwise convolutions of few channels: vectors run along lines, over the channels of several pixels.

A block of lines copies the lines of the image that it reads, with zeros around them, to the stack. There pixel and
channel are one axis: a tap is a constant distance along it, and its weights repeat with the channels. With a stride the
copy has the pixels of each residue one after the other, so that the taps of neighboring results are neighbors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import Operation, Tensor, Use, Window, spatial, window_of
from packager.backends.ccompiler.core.shapes import Shape, c_text, ceil_div, equal, product
from packager.backends.ccompiler.core.stages import Stage, is_full
from packager.backends.ccompiler.gemm.blocks import even_size
from packager.backends.ccompiler.gemm.finish import is_of_columns

# Channels from which on vectors along the channels of a pixel are as fast.
MANY_CHANNELS = 16
# Taps that are written out, and lines of a block, whose sums share loads.
MOST_TAPS, LINES = 64, 4
# Floats of a copy, which the first-level cache holds.
MOST_COPIED = 6144
# Pixels of a line of planes, in whole vectors of the widest of which so many are pixels, and taps of several lines, for
# which planes are faster as they are than with channels last between two transpositions.
LEAST_WIDTH, WIDEST, LEAST_USED, FEW_TAPS = 32, 16, 0.85, 16


@dataclass(frozen=True)
class _Copy:
    """The lines that a block copies, from its first on, and the residues of columns that taps read, of a stride."""

    lines: tuple[int, ...]
    residues: tuple[int, ...]
    stride: int
    reach: int

    def pixels(self, places: int) -> int:
        """Return the pixels of a residue that so many results of a line read."""
        return -(-((places - 1) * self.stride + self.reach) // self.stride)

    def places(self, pixels: int) -> int:
        """Return how many results of a line read at most so many pixels of a residue."""
        return (pixels * self.stride - self.reach) // self.stride + 1


@dataclass(frozen=True)
class _Lines:
    """Images [N, H, W, C] with few channels, and what is computed of them."""

    window: Window
    channels: int
    data: Shape
    result: Shape


@dataclass(frozen=True)
class DepthwisePlanes:
    """A depthwise convolution of planes with a window of two axes: their sides, and those of the result."""

    window: Window
    extent: tuple[int, int]
    out: tuple[int, int]


def find_planes(window: Window, extent: Sequence[int], out: Sequence[int]) -> DepthwisePlanes | None:
    """Return planes of long lines, for a small window with three axes and no strides; None if they are no such."""
    flat = Window(*(each[1:] for each in (window.size, window.strides, window.dilation, window.before, window.after)))
    taps = int(product(flat.size))
    if extent[0] != 1 or out[0] != 1 or window.size[0] != 1 or {*flat.strides} != {1}:
        return None
    if taps > MOST_TAPS or (flat.size[0] > 1 and taps > FEW_TAPS) or out[2] < LEAST_WIDTH:
        return None
    if out[2] < LEAST_USED * WIDEST * ceil_div(out[2], WIDEST) or _most_places(_copy(flat, LINES), 1) < WIDEST:
        return None
    return DepthwisePlanes(flat, (extent[1], extent[2]), (out[1], out[2]))


def is_by_lines(anchor: Operation) -> bool:
    """Whether a convolution of groups of one channel has a filter for each of few channels, and a small window."""
    data, weight = anchor.uses
    channels = int(weight.shape[0])
    if {data.tensor.dtype, weight.tensor.dtype, anchor.result.dtype} != {"float32"} or channels >= MANY_CHANNELS:
        return False
    if len(data.shape) > 4:
        return False
    window = window_of(weight.shape[1:-1], anchor.attributes)
    is_single = equal(channels, data.shape[-1]) and int(product(window.size)) <= MOST_TAPS
    return is_single and _most_places(_copy(window, LINES), channels) >= LINES


def add_depthwise_lines(stage: Stage, anchor: Operation, group: GroupDraft, weights: int) -> None:
    """Add the function of a stage to its group; ``weights`` are packed as [taps, channels]. Raises CannotRender."""
    data, weight = anchor.uses
    window, channels = window_of(weight.shape[1:-1], anchor.attributes), int(weight.shape[0])
    shape, out = spatial(data.shape), spatial(anchor.result.shape)
    bias, stage = _without_bias(stage, anchor)
    by_line = all(_is_along(operation) for operation in stage.after)
    if by_line:
        stage = replace(stage, rows=product(out[:2]), inner=product(out[2:]))
    draft = group.function("depthwise_lines")
    values = {
        "w": draft.packed(weights, "float"),
        "bias": draft.tensor(bias, False) if bias else "",
        "by_line": by_line,
        "filters": 0,
    }
    _finish(draft, stage, data, values, _Lines(window, channels, shape, out))


def add_depthwise_planes(stage: Stage, anchor: Operation, group: GroupDraft, planes: DepthwisePlanes) -> None:
    """Add the function of a stage of planes, images of one channel each, to its group. Raises CannotRender."""
    weights, data = anchor.uses
    draft = group.function("depthwise_planes")
    filters = int(weights.shape[0])
    values = {"w": draft.tensor(weights.tensor, False), "bias": "", "by_line": True, "filters": filters}
    images = product((data.shape[0], filters))
    shape, out = (Shape((images, *sides, 1)) for sides in (planes.extent, planes.out))
    _finish(draft, stage, data, values, _Lines(planes.window, 1, shape, out))


def _finish(draft: FunctionDraft, stage: Stage, data: Use, values: dict[str, Any], images: _Lines) -> None:
    """Finish the function of images [N, H, W, C] with few channels."""
    window, channels, shape, (_, lines, width, _) = images.window, images.channels, images.data, images.result
    most = even_size(lines, LINES) if isinstance(lines, int) and lines > 0 else LINES
    copy, lanes = _copy(window, most), draft.group.machine.vector_bytes // 4
    segment = _most_places(copy, channels)
    segment = even_size(width, segment) if isinstance(width, int) and width > 0 else segment
    phase = copy.pixels(segment) * channels + lanes
    values |= {
        "program": draft.program(stage, "sums[j]"),
        "x": draft.tensor(data.tensor, False),
        "channels": channels,
        "taps": int(product(window.size)),
        "lanes": lanes,
        "repeats": lanes % channels == 0,
        "blocks": c_text(ceil_div(lines, most)),
        "most": most,
        "lines": c_text(lines),
        "width": c_text(width),
        "in_height": c_text(shape[1]),
        "in_width": c_text(shape[2]),
        "window": window,
        "copy": copy,
        "segment": segment,
        "phase": phase,
        "pitch": phase * len(copy.residues),
        "products": _products(window, copy, most, phase, channels),
    }
    draft.finish("ops/depthwise_lines", product((shape[0], ceil_div(lines, most))), values)


def _copy(window: Window, lines: int) -> _Copy:
    """Return what a block of so many lines copies."""
    (tall, wide), (down, right), (dilation_y, dilation_x) = window.size, window.strides, window.dilation
    offsets = {line * down + tap * dilation_y for line in range(lines) for tap in range(tall)}
    residues = {tap * dilation_x % right for tap in range(wide)}
    return _Copy(tuple(sorted(offsets)), tuple(sorted(residues)), right, (wide - 1) * dilation_x + 1)


def _most_places(copy: _Copy, channels: int) -> int:
    """Return the results of a line whose copies fit; of 16 lanes, the most that vectors have."""
    floats = MOST_COPIED // (len(copy.lines) * len(copy.residues)) - 16
    return copy.places(floats // channels)


def _products(window: Window, copy: _Copy, lines: int, phase: int, channels: int) -> list[tuple[int, list[Any]]]:
    """Return the vectors of the copy, by their offsets, each with the (line, tap) that it is multiplied for."""
    (tall, wide), (down, right), (dilation_y, dilation_x) = window.size, window.strides, window.dilation
    found = []
    for index, offset in enumerate(copy.lines):
        taps = [(line, tap) for line in range(lines) for tap in range(tall) if line * down + tap * dilation_y == offset]
        for column in range(wide):
            residue = copy.residues.index(column * dilation_x % right)
            at = (index * len(copy.residues) + residue) * phase + column * dilation_x // right * channels
            found.append((at, [(line, tap * wide + column) for line, tap in taps]))
    return found


def _without_bias(stage: Stage, anchor: Operation) -> tuple[Tensor | None, Stage]:
    """Return what is added to each channel first, and the stage without it; None if nothing is, or sums are stored."""
    first = stage.after[0] if stage.after else None
    if first is None or first.name != "add" or len(first.uses) != 2:
        return None, stage
    others = [use for use in first.uses if use.tensor.index != anchor.result.index]
    read = [use for operation in stage.after[1:] for use in operation.uses]
    again = {tensor.index for tensor in stage.stored} | {use.tensor.index for use in read}
    if len(others) != 1 or anchor.result.index in again or not is_of_columns(others[0], anchor):
        return None, stage
    return others[0].tensor, replace(stage, anchor=replace(anchor, result=first.result), after=stage.after[1:])


def _is_along(operation: Operation) -> bool:
    """Whether an operator reads tensors of its own shape, or one element."""
    shape = operation.result.shape
    return all(is_full(use, shape) or equal(product(use.shape), 1) for use in operation.uses)

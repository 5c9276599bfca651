"""Maxima over windows line by line: the lines of a window first, then its columns.

A window of D x H x W takes D H + W comparisons for each element, in place of D H W, and lines are contiguous whatever
the number of channels: so planes of NCHW are pooled as they are, as images of one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS
from packager.backends.ccompiler.core.moves import Permute
from packager.backends.ccompiler.core.operations import PLANAR_MEAN, Operation, Tensor, Use, Window, spatial, window_of
from packager.backends.ccompiler.core.shapes import Shape, c_text, product
from packager.backends.ccompiler.core.stages import Stage

# Floats of the columns of a segment, on the stack: the first-level cache holds them beside the lines.
MOST_COLUMNS = 4096
# Channels that are computed at once where all are too many.
CHUNK = 64
MEANS = frozenset({"mean", "nn.adaptive_avg_pool2d"})
MAXIMA = frozenset({"nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"})
# Columns that are worth a loop over them.
MIN_WIDTH = 16


def is_by_lines(anchor: Operation) -> bool:
    """Whether a maximum is computed line by line: several lines, and fewer comparisons, or odd channels."""
    data = anchor.uses[0]
    if not anchor.name.startswith("nn.max_pool") or data.tensor.dtype != "float32":
        return False
    window = _window(anchor)
    lines, columns = int(product(window.size[:-1])), window.size[-1]
    reach = (columns - 1) * window.dilation[-1] + 1
    if reach < window.strides[-1] or not _fits(reach, min(data.shape[-1], CHUNK)):
        return False
    if lines == 1 or data.shape[-1] == 1:  # vectors are along the columns
        return bool(data.shape[-1] == 1 and window.strides[-1] <= 2)
    fewer = lines * window.strides[-1] + columns + 1 < lines * columns
    return fewer or data.shape[-1] % COLUMNS != 0


def pool_planes(operations: Sequence[Operation], results: Sequence[Tensor]) -> list[Operation]:
    """Return operations with maxima and means over planes of NCHW as they are, in place of those that permutations to
    channels last, and for maxima back, are around."""
    made = {operation.result.index: operation for operation in operations}
    readers: dict[int, list[Operation]] = {}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, []).append(operation)
    kept = {tensor.index for tensor in results}
    found = list(operations)
    for pool in operations:
        before = made.get(pool.uses[0].tensor.index) if pool.name in MEANS | MAXIMA else None
        if before is None or len(readers[before.result.index]) != 1 or before.result.index in kept:
            continue
        if pool.uses[0].shape != before.result.shape:
            continue
        rank = len(before.result.shape)
        last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
        if before.attributes != Permute(last):
            continue
        if pool.name in MEANS:
            axes = pool.attributes.axis if pool.name == "mean" else range(1, rank - 1)
            whole = sorted(int(axis) % rank for axis in axes or ()) == [*range(1, rank - 1)]
            if whole and pool.result.dtype == "float32":  # of one element a plane: the same in both layouts
                found[found.index(pool)] = replace(pool, name=PLANAR_MEAN, operands=before.operands)
                found.remove(before)
            continue
        after = readers.get(pool.result.index, [])
        if len(after) != 1 or after[0].attributes != Permute(first) or pool.result.index in kept:
            continue
        planar = replace(
            pool,
            operands=(Use(before.uses[0].tensor, _planes(before.uses[0].shape)),),
            result=replace(after[0].result, shape=_planes(after[0].result.shape)),
        )
        width = planar.uses[0].shape[-2]
        if not is_by_lines(planar) or not isinstance(width, int) or width < MIN_WIDTH:
            continue
        found[found.index(after[0])] = planar
        found = [operation for operation in found if operation is not before and operation is not pool]
    return found


def add_pool_lines(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data, window = anchor.uses[0], _window(anchor)
    axes = len(window.size)
    source, result = spatial(data.shape, axes), spatial(anchor.result.shape, axes)
    channels, width = int(data.shape[-1]), result[-2]
    reach, stride = (window.size[-1] - 1) * window.dilation[-1] + 1, window.strides[-1]
    chunk = channels if _fits(reach + 7 * stride, channels) or channels < CHUNK else CHUNK
    segment = max(1, (MOST_COLUMNS // chunk - reach) // stride + 1)
    segment = min(segment, width) if isinstance(width, int) else segment
    lines, lanes = product(result[:-2]), group.machine.vector_bytes // 4
    by_line = not stage.after and chunk == channels
    draft = group.function("pool_lines")
    if by_line:  # nothing has an element for each channel
        stage = replace(stage, rows=lines, inner=product((width, channels)))
    values: dict[str, Any] = {
        "program": draft.program(stage, as_result("(sums[j])", anchor.result.dtype)),
        "x": draft.tensor(data.tensor, False),
        "window": window,
        "lines": c_text(result[-3]),
        "planes": c_text(result[1]),
        "width": c_text(width),
        "in_depth": c_text(source[1]),
        "in_height": c_text(source[-3]),
        "in_width": c_text(source[-2]),
        "pitch": c_text(product((source[-2], channels))),
        "plane_step": c_text(product((window.dilation[0], source[-3]))) if axes == 3 else "0",
        "line_step": window.dilation[-2],
        "deep": axes == 3,
        "channels": c_text(channels),
        "chunk": chunk,
        "count": str(chunk) if channels % chunk == 0 else f"pk_min_i64({chunk}, {channels} - start)",
        "whole": chunk == channels,
        "segment": segment,
        "columns": ((segment - 1) * stride + reach) * chunk,
        "stride": stride,
        "reach": reach,
        "taps": [tap * window.dilation[-1] for tap in range(1, window.size[-1])],
        "lanes": lanes,
        "padding": (stride + 1) * lanes if stride <= 2 else 0,  # that vectors of the last elements read
        "by_line": by_line,
    }
    draft.finish("ops/pool_lines", lines, values)


def _window(anchor: Operation) -> Window:
    axes = max(len(anchor.uses[0].shape) - 2, 2)
    return window_of(anchor.attributes.pool_size, anchor.attributes, axes)


def _fits(columns: int, channels: int) -> bool:
    return columns * channels <= MOST_COLUMNS


def _planes(shape: Shape) -> Shape:
    """Return the shape of planes or volumes [N, C, ...] as images of one channel, [N C, ..., 1]."""
    return Shape((product(shape[:2]), *shape[2:], 1))

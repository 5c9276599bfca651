"""Maxima and averages over windows line by line: the lines of a window first, then its columns.

A window of D x H x W takes D H + W operations for each element, in place of D H W, and lines are contiguous whatever
the number of channels: so planes of NCHW are pooled as they are, as images of one channel. Lines of the result that
share lines of the image are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS
from packager.backends.ccompiler.core.moves import Permute
from packager.backends.ccompiler.core.operations import PLANAR_MEAN, Operation, Tensor, Use, Window, spatial, window_of
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, ceil_div, equal, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_size

# Floats of the columns of a segment, on the stack: the first-level cache holds them beside the lines.
MOST_COLUMNS = 4096
# Lines of the result that are computed together, and lines of the image whose loads are written out.
LINES, WRITTEN_OUT = 4, 16
# Channels that are computed at once where all are too many; those of a vector of bytes.
CHUNK = BYTES = 64
MEANS = frozenset({"mean", "nn.adaptive_avg_pool2d"})
# Elements: the C type of a vector, its name in functions, and the least number, in C. Halves are floats when loaded.
ELEMENTS = {
    "float32": ("pk_vf32", "f32", "-__builtin_inff()"),
    "float16": ("pk_vf32", "f32", "-__builtin_inff()"),
    "uint8": ("pk_u8_bytes", "u8_bytes", "0"),
    "int8": ("pk_i8_bytes", "i8_bytes", "INT8_MIN"),
}
MAXIMA = frozenset({"nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"})
AVERAGES = frozenset({"nn.avg_pool2d", "nn.avg_pool3d"})
# The longest stride of columns, of which there are no vectors.
MOST_STRIDE = 4
# Columns that are worth a loop over them.
MIN_WIDTH = 16


def is_by_lines(anchor: Operation) -> bool:
    """Whether a window is computed line by line: one of planes, or a maximum of fewer comparisons, or odd channels."""
    data = anchor.uses[0]
    window, channels, dtype = _window(anchor), data.shape[-1], data.tensor.dtype
    is_float = dtype == "float32"
    if anchor.name not in (MAXIMA | AVERAGES if is_float else MAXIMA) or dtype not in ELEMENTS:
        return False
    lines, columns = int(product(window.size[:-1])), window.size[-1]
    reach = (columns - 1) * window.dilation[-1] + 1
    if reach < window.strides[-1] or not _fits(reach, min(channels, CHUNK)):
        return False
    if channels == 1 and not is_float:
        return False
    if channels == 1:  # vectors are along the columns
        width = anchor.result.shape[-2]
        is_one = isinstance(width, int) and _fits((width - 1) * window.strides[-1] + reach, 1)
        return window.strides[-1] <= MOST_STRIDE and (is_one or not _is_counted(anchor))  # a table has the counts
    if anchor.name in AVERAGES or lines == 1:
        return False
    fewer = lines * window.strides[-1] + columns + 1 < lines * columns
    return fewer or dtype == "float16" or channels % (COLUMNS if is_float else BYTES) != 0


def pool_planes(operations: Sequence[Operation], results: Sequence[Tensor]) -> list[Operation]:
    """Return operations with poolings and means over planes of NCHW as they are, in place of those that permutations to
    channels last, and for poolings back, are around."""
    made = {operation.result.index: operation for operation in operations}
    readers: dict[int, list[Operation]] = {}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, []).append(operation)
    kept = {tensor.index for tensor in results}
    found = list(operations)
    for pool in operations:
        before = made.get(pool.uses[0].tensor.index) if pool.name in MEANS | MAXIMA | AVERAGES else None
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
    channels, width, lines = int(data.shape[-1]), result[-2], result[-3]
    reach, stride = (window.size[-1] - 1) * window.dilation[-1] + 1, window.strides[-1]
    chunk = channels if _fits(reach + 7 * stride, channels) or channels < CHUNK else CHUNK
    segment = max(1, (MOST_COLUMNS // chunk - reach) // stride + 1)
    segment = min(segment, width) if isinstance(width, int) else segment
    is_flat = stride == 1 or channels == 1  # columns of several lines are as those of one
    pitch = _rounded(((segment - 1) * stride + reach) * chunk, stride if is_flat else 1)
    together = _together(window, lines, MOST_COLUMNS // pitch) if equal(width, segment) and chunk == channels else 1
    offsets, rows = _lines(window, together)
    dtype = data.tensor.dtype
    blocks, lanes = ceil_div(lines, together), group.machine.vector_bytes // (1 if dtype in ("int8", "uint8") else 4)
    by_line = not stage.after and chunk == channels
    draft = group.function("pool_lines")
    if by_line:  # nothing has an element for each channel
        stage = replace(stage, rows=product(result[:-2]), inner=product((width, channels)))
    is_max, counted = anchor.name in MAXIMA, _is_counted(anchor)
    value = "sums[j]" if is_max else "sums[j] * share"
    vector, kind, least = ELEMENTS[dtype]
    values: dict[str, Any] = {
        "program": draft.program(stage, as_result(f"({value})", anchor.result.dtype)),
        "x": draft.tensor(data.tensor, False),
        "window": window,
        "lines": c_text(lines),
        "planes": c_text(result[1]),
        "width": c_text(width),
        "in_depth": c_text(source[1]),
        "in_height": c_text(source[-3]),
        "in_width": c_text(source[-2]),
        "line_pitch": c_text(product((source[-2], channels))),
        "deep": axes == 3,
        "channels": c_text(channels),
        "chunk": chunk,
        "count": str(chunk) if channels % chunk == 0 else f"pk_min_i64({chunk}, {channels} - start)",
        "whole": chunk == channels,
        "segment": segment,
        "blocks": c_text(blocks),
        "most": together,
        "offsets": offsets,
        "rows": rows,
        "written_out": len(offsets) <= WRITTEN_OUT,
        "is_outside": _is_outside(window, source, result, together),
        "pitch": pitch,
        "out_pitch": pitch // stride if is_flat else segment * chunk,
        "stride": stride,
        "reach": reach,
        "taps": [tap * window.dilation[-1] for tap in range(1, window.size[-1])],
        "lanes": lanes,
        "padding": (stride + 1) * lanes,  # that vectors of the last elements read
        "stored": CTYPES[dtype].stored,
        "value": CTYPES[dtype].value,
        "load": "f16" if dtype == "float16" else kind,
        "widen": "pk_widen" if dtype == "float16" else "",
        "least": "0xfc00" if dtype == "float16" else least if is_max else "0",
        "vector": vector,
        "kind": kind,
        "identity": least if is_max else "0",
        "next": f"pk_max_{CTYPES[dtype].suffix}({{0}}, {{1}})" if is_max else "({0} + {1})",
        "next_vector": f"pk_maximum_{kind}({{0}}, {{1}})" if is_max else "({0} + {1})",
        "apart": reach // stride + lanes,
        "is_average": not is_max,
        "counted": counted,
        "length": c_text(product((width, channels))) if equal(width, segment) else "places * count",
        "by_line": by_line,
    }
    draft.finish("ops/pool_lines", product((*result[:-3], blocks)), values)


def _together(window: Window, lines: Extent, most: int) -> int:
    """Return the lines of the result that are computed together."""
    most = max(1, min(LINES, most))
    while most > 1 and len(_lines(window, most)[0]) > WRITTEN_OUT:
        most -= 1
    return even_size(lines, most) if isinstance(lines, int) and lines > 0 else most


def _lines(window: Window, together: int) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Return the lines that windows of so many lines read, by plane and line, and which those of each one are."""
    *deep, tall = [
        [tap * dilation for tap in range(size)]
        for size, dilation in zip(window.size[:-1], window.dilation[:-1], strict=True)
    ]
    planes = deep[0] if deep else [0]
    read = [[(z, line * window.strides[-2] + y) for z in planes for y in tall] for line in range(together)]
    offsets = sorted({place for places in read for place in places})
    return offsets, [[offsets.index(place) for place in places] for places in read]


def _is_outside(window: Window, source: Shape, result: Shape, together: int) -> bool:
    """Whether windows of whole blocks of lines exceed the image in height or depth."""
    for axis, (before, extent, out) in enumerate(zip(window.before[:-1], source[1:-2], result[1:-2], strict=True)):
        if before or not isinstance(extent, int) or not isinstance(out, int):
            return True
        count = _rounded(out, together) if axis == len(window.size) - 2 else out
        if (count - 1) * window.strides[axis] + (window.size[axis] - 1) * window.dilation[axis] >= extent:
            return True
    return False


def _is_counted(anchor: Operation) -> bool:
    """Whether an average is over the elements of the image alone."""
    return anchor.name in AVERAGES and not anchor.attributes.count_include_pad


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _window(anchor: Operation) -> Window:
    axes = max(len(anchor.uses[0].shape) - 2, 2)
    return window_of(anchor.attributes.pool_size, anchor.attributes, axes)


def _fits(columns: int, channels: int) -> bool:
    return columns * channels <= MOST_COLUMNS


def _planes(shape: Shape) -> Shape:
    """Return the shape of planes or volumes [N, C, ...] as images of one channel, [N C, ..., 1]."""
    return Shape((product(shape[:2]), *shape[2:], 1))

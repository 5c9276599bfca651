"""Pooling along lines, planes and volumes, and means over them as a whole; channels are last, as vectors run."""

from __future__ import annotations

import itertools
from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, as_result, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import PLANAR_MEAN, CannotRender, Operation, Window, spatial, window_of
from packager.backends.ccompiler.core.shapes import Shape, c_text, ceil_div, plain, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.ops.pool_lines import add_pool_lines, is_by_lines

# Channels accumulated at once: of a window, and of a plane, whose bands of channels threads share.
CHUNK = 256
BAND = 64
# Pixels of a plane per partial sum: pairwise sums are more exact.
BLOCK = 64
# Ranks of tensors of lines, planes and volumes.
RANKS = (3, 4, 5)
# The maximum of unrolled elements of a window.
MOST_TAPS = 9
LEAST = {"uint8": 0, "int8": -(2**7), "int32": -(2**31)}


def add_pool2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data = anchor.uses[0]
    dtype = data.tensor.dtype
    rank = len(data.shape)
    if rank not in RANKS:
        raise CannotRender(f"{anchor.name} of a tensor of rank {rank}")
    if anchor.name in ("mean", "nn.adaptive_avg_pool2d", PLANAR_MEAN):
        axes = sorted(int(axis) % rank for axis in anchor.attributes.axis or ()) if anchor.name == "mean" else None
        if axes is not None and axes != list(range(1, rank - 1)):
            raise CannotRender("a mean that is not over whole images")
        _add_plane_mean(stage, anchor, group)
        return
    if is_by_lines(anchor):
        add_pool_lines(stage, anchor, group)
        return
    axes_count = max(rank - 2, 2)  # a line is a plane of height 1
    window = window_of(anchor.attributes.pool_size, anchor.attributes, axes_count)
    source, result = spatial(data.shape, axes_count), spatial(anchor.result.shape, axes_count)
    is_max = anchor.name.startswith("nn.max_pool")
    ctype = CTYPES[dtype]
    total = ctype.value if is_max or ctype.is_float else "int32_t"
    suffix = ctype.suffix if is_max else "i32"
    channels = int(stage.inner)
    chunk = min(CHUNK, channels)
    lanes = group.machine.vector_bytes // 4
    in_registers = dtype == "float32" and channels % lanes == 0
    written_out = in_registers and 1 < product(window.size) <= MOST_TAPS
    draft = group.function("pool2d")
    count = "places" if not anchor.attributes.count_include_pad else product(window.size)
    value = "sums[j]" if is_max else f"sums[j] / {count}"
    draft.finish(
        "ops/pool2d",
        stage.rows,
        {
            "program": draft.program(stage, as_result(f"({value})", anchor.result.dtype)),
            "x": draft.tensor(data.tensor, False),
            "stored": ctype.stored,
            "widens": dtype == "float16",
            "total": total,
            "first": literal(LEAST.get(dtype, float("-inf")), dtype) if is_max else "0",
            "next": (
                f"pk_max_{suffix}({{0}}, {{1}})"
                if is_max
                else "{0} + {1}"
                if ctype.is_float
                else "pk_add_i32({0}, {1})"
            ),
            "lines": c_text(result[-3]),
            "width": c_text(result[-2]),
            "channels": c_text(stage.inner),
            "in_height": c_text(source[-3]),
            "in_width": c_text(source[-2]),
            "deep": axes_count == 3,
            "planes": c_text(result[1]),
            "in_depth": c_text(source[1]),
            "in_registers": in_registers,
            "window": window,
            "taps_in_all": product(window.size),
            "counted": not is_max and not anchor.attributes.count_include_pad,
            "chunk": chunk,
            "count": str(chunk) if channels % chunk == 0 else f"pk_min_i64({chunk}, {channels} - start)",
            "lanes": lanes,
            "next_vector": "pk_maximum_f32(sum, {0})" if is_max else "sum + {0}",
            **(_taps(source, result, window) if written_out else {"taps": (), "inside": False}),
        },
    )


def _taps(data: Shape, result: Shape, window: Window) -> dict[str, Any]:
    """Return the offsets of a window's elements from its first, and whether all windows are inside the image.

    Windows that begin at most at ``most_top`` and ``most_left`` are inside at the bottom and right.
    """
    *extents, channels = data[1:]
    pitches = [product((*extents[axis + 1 :], channels)) for axis in range(len(extents))]
    last = [
        plain(extent - 1 - (size - 1) * dilation)
        for extent, size, dilation in zip(extents, window.size, window.dilation, strict=True)
    ]
    inside = not window.is_padded and all(
        isinstance(most, int) and isinstance(count, int) and (count - 1) * stride <= most
        for most, count, stride in zip(last, result[1:-1], window.strides, strict=True)
    )
    steps = [
        [product((tap, dilation, pitch)) for tap, dilation, pitch in zip(taps, window.dilation, pitches, strict=True)]
        for taps in itertools.product(*map(range, window.size))
    ]
    offsets = [" + ".join(c_text(step) for step in step_of_axes if step != 0) for step_of_axes in steps[1:]]
    most = dict(zip(("most_front", "most_top", "most_left")[-len(last) :], map(c_text, last), strict=True))
    return {"taps": offsets, "inside": inside, **most}


def _add_plane_mean(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    data = anchor.uses[0]
    draft = group.function("plane_mean")
    bands = ceil_div(stage.inner, BAND)
    draft.finish(
        "ops/plane_mean",
        product((stage.rows, bands)),
        {
            "program": draft.program(stage, as_result("(sums[j] / places)", anchor.result.dtype)),
            "x": draft.tensor(data.tensor, False),
            "stored": CTYPES[data.tensor.dtype].stored,
            "widens": data.tensor.dtype == "float16",
            "planar": anchor.name == PLANAR_MEAN,
            "plane": c_text(product(data.shape[2:] if anchor.name == PLANAR_MEAN else data.shape[1:-1])),
            "channels": c_text(stage.inner),
            "bands": bands,
            "band": BAND,
            "block": BLOCK,
        },
    )

"""max_pool2d, avg_pool2d, and means over whole planes, over NHWC, vectorized along the channels."""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, as_result, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation, Window, window_of
from packager.backends.ccompiler.core.shapes import Shape, c_text, ceil_div, plain, product
from packager.backends.ccompiler.core.stages import Stage

# Channels accumulated at once: of a window, and of a plane, whose bands of channels threads share.
CHUNK = 256
BAND = 64
# Pixels of a plane per partial sum: pairwise sums are more exact.
BLOCK = 64
# The maximum of unrolled elements of a window.
MOST_TAPS = 9
LEAST = {"uint8": 0, "int8": -(2**7), "int32": -(2**31)}


def add_pool2d(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data = anchor.uses[0]
    dtype = data.tensor.dtype
    if len(data.shape) != 4:
        raise CannotRender(f"{anchor.name} of a tensor of rank {len(data.shape)}")
    if anchor.name in ("mean", "nn.adaptive_avg_pool2d"):
        if anchor.name == "mean" and sorted(int(axis) % 4 for axis in anchor.attributes.axis or ()) != [1, 2]:
            raise CannotRender("a mean that is not over planes")
        _add_plane_mean(stage, anchor, group)
        return
    window = window_of(anchor.attributes.pool_size, anchor.attributes)
    is_max = anchor.name == "nn.max_pool2d"
    ctype = CTYPES[dtype]
    total = ctype.value if is_max or ctype.is_float else "int32_t"
    suffix = ctype.suffix if is_max else "i32"
    channels = int(stage.inner)
    chunk = min(CHUNK, channels)
    lanes = group.machine.vector_bytes // 4
    written_out = dtype == "float32" and channels % lanes == 0 and 1 < product(window.size) <= MOST_TAPS
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
            "lines": c_text(anchor.result.shape[1]),
            "width": c_text(anchor.result.shape[2]),
            "channels": c_text(stage.inner),
            "in_height": c_text(data.shape[1]),
            "in_width": c_text(data.shape[2]),
            "window": window,
            "counted": not is_max and not anchor.attributes.count_include_pad,
            "chunk": chunk,
            "count": str(chunk) if channels % chunk == 0 else f"pk_min_i64({chunk}, {channels} - start)",
            "lanes": lanes,
            "next_vector": "pk_maximum_f32(sum, {0})" if is_max else "sum + {0}",
            **(_taps(data.shape, anchor.result.shape, window) if written_out else {"taps": (), "inside": False}),
        },
    )


def _taps(data: Shape, result: Shape, window: Window) -> dict[str, Any]:
    """Return the offsets of a window's elements from its first, and whether all windows are inside the image.

    Windows that begin at most at ``most_top`` and ``most_left`` are inside at the bottom and right.
    """
    height, width, channels = data[1:]
    (tall, wide), (below, beside) = window.size, window.dilation
    steps = [(y * below * channels, x * beside * channels) for y in range(tall) for x in range(wide)]
    last = [plain(height - 1 - (tall - 1) * below), plain(width - 1 - (wide - 1) * beside)]
    inside = not window.is_padded and all(
        isinstance(most, int) and isinstance(count, int) and (count - 1) * stride <= most
        for most, count, stride in zip(last, result[1:3], window.strides, strict=True)
    )
    taps = [f"{c_text(width)} * {lines} + {places}" for lines, places in steps[1:]]
    return {"taps": taps, "inside": inside, "most_top": c_text(last[0]), "most_left": c_text(last[1])}


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
            "plane": c_text(product(data.shape[1:3])),
            "channels": c_text(stage.inner),
            "bands": bands,
            "band": BAND,
            "block": BLOCK,
        },
    )

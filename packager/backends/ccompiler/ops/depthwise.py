"""Depthwise convolutions of lines, planes and volumes with channels last, vectorized along the channels.

A tile is a few pixels of a line times one or two vectors of channels, accumulated in registers. A table points to the
pixels of the input that its windows read; those of the padding point to zeros. Few channels have a way of their own
(``depthwise_lines``); where that does not apply, and of several filters per channel, each result is computed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.expressions import CTYPES, as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import KINDS
from packager.backends.ccompiler.core.operations import Operation, spatial, window_of
from packager.backends.ccompiler.core.shapes import Extent, c_text, equal, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.ops.conv2d import groups_of
from packager.backends.ccompiler.ops.depthwise_lines import add_depthwise_lines, is_by_lines

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Pixels of a tile, whose accumulators fit the registers. 7 divides the lines of most networks.
PLACES = 7
# The maximum of unrolled products per line of a tile.
PRODUCTS = 80
# Channels whose lines stay in the L1 cache for all windows of a tile.
CHUNK = 192
MOST_LANES = 16
# Products of bytes accumulate in float32, which is exact for windows up to this size.
BYTES = ("uint8", "int8")
MOST_BYTES = 2**24 // (255 * 128)


def is_depthwise(anchor: Operation) -> bool:
    """Whether a convolution has one channel per group, and floats hold sums of integers exactly.

    Several filters per channel, and large windows of fewer channels than vectors have, are left to products of several
    groups at once.
    """
    data, weight = anchor.uses
    filters, groups = int(weight.shape[0]), groups_of(anchor)
    if groups < 2 or not equal(weight.shape[-1], 1):
        return False
    if (filters != groups or filters < MOST_LANES) and _is_product(anchor):
        return is_by_lines(anchor)
    if data.tensor.dtype in BYTES:
        exact = product(weight.shape[1:-1]) <= MOST_BYTES
        return bool(weight.tensor.dtype == "int8" and anchor.result.dtype == "int32" and exact)
    return data.tensor.dtype in ("float32", "float16")


def _is_product(anchor: Operation) -> bool:
    """Whether there are tiles for the element types."""
    data, result = anchor.uses[0].tensor.dtype, anchor.result.dtype
    return data in ("float32", "float16") or result == "int32"


def add_depthwise(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    data, weight = anchor.uses
    argument = group.constant(weight)
    if is_by_lines(anchor):
        add_depthwise_lines(stage, anchor, group, group.packing(argument, "hwo", _pack))
        return
    kind, window = KINDS[data.tensor.dtype].name, window_of(weight.shape[1:-1], anchor.attributes, 3)
    is_bytes = data.tensor.dtype in BYTES
    channels = int(stage.inner)
    shape = spatial(data.shape, 3)
    per_channel = channels // int(shape[-1])
    depth, lines, width = spatial(anchor.result.shape, 3)[1:4]
    places, chunk = _places(width, window.size[-1]), _chunk(channels)
    lanes = group.machine.vector_bytes // 4
    draft = group.function("depthwise")
    stored = CTYPES[data.tensor.dtype].stored
    weight_stored = "float" if is_bytes else stored
    w = group.packing(argument, "hwo_f32", _pack_floats) if is_bytes else group.packing(argument, "hwo", _pack)
    vectors = 2 if group.machine.registers == 32 else 1
    draft.finish(
        "ops/depthwise",
        product((shape[0], depth, lines)),
        {
            "program": draft.program(stage, as_result("sums[j]", anchor.result.dtype)),
            "kind": f"{kind}_f32" if is_bytes else kind,
            "weight_kind": "f32" if is_bytes else kind,
            "weight_stored": weight_stored,
            "stored": stored,
            "widen": "pk_widen" if data.tensor.dtype == "float16" else "",
            "x": draft.tensor(data.tensor, False),
            "w": draft.packed(w, weight_stored),
            "channels": channels,
            "in_channels": channels // per_channel,
            "lines": c_text(lines),
            "width": c_text(width),
            "depth": c_text(depth),
            "in_depth": c_text(shape[1]),
            "in_height": c_text(shape[2]),
            "in_width": c_text(shape[3]),
            "volumes": len(data.shape) > 4,
            "window": window,
            "places": places,
            "columns": (places - 1) * window.strides[-1] + (window.size[-1] - 1) * window.dilation[-1] + 1,
            "chunk": chunk,
            "count": str(chunk) if channels % chunk == 0 else f"pk_min_i64({chunk}, {channels} - start)",
            "lanes": lanes,
            "per_channel": per_channel,
            "tiles": [size for size in range(vectors, 0, -1) if size * lanes <= channels and per_channel == 1],
        },
    )


def _places(width: Extent, window: int) -> int:
    """Return the pixels of a tile: those that waste the fewest in the last tile of a line."""
    most = max(1, min(PLACES, PRODUCTS // window))
    if not isinstance(width, int):
        return most
    sizes = range(min(most, width), max(0, min(most, width) // 2), -1)
    return min(sizes, key=lambda size: -(-width // size) * (size + 1))


def _chunk(channels: int) -> int:
    """Return the channels of a chunk; the last chunk has at least a vector."""
    if channels <= CHUNK:
        return channels
    sizes = [
        size for size in range(CHUNK, CHUNK // 2, -MOST_LANES) if channels % size == 0 or channels % size >= MOST_LANES
    ]
    return min(sizes, key=lambda size: (-(-channels // size), size))


def _pack(array: Array) -> Array:
    """Return [channels, ..., 1], of which ... is the window, as [..., 1, channels]."""
    return np.moveaxis(np.asarray(array), 0, -1)


def _pack_floats(array: Array) -> Array:
    """Return integers as ``_pack``, as floats."""
    return _pack(array).astype(np.float32)

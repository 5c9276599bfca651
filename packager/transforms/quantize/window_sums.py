"""Sums of the data that each window of a convolution reads: over channels first, then along each axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from packager.graph.dataflow import static_shape_of
from packager.graph.rewrite import rebuild_call
from packager.transforms.quantize.arithmetic import Emitter

# Windows of fewer elements, or of fewer places, are a product with ones.
LEAST_ELEMENTS, LEAST_TAPS = 256, 4


def emit_window_sums(
    emitter: Emitter, call: relax.Call, value: Any, padding: list[int], window: tuple[int, ...], name: str
) -> Any:
    """Emit the sums of a convolution's windows, int32 with one channel.

    ``value`` is its data with channels first, padded by zeros of ``padding``; ``window`` are the extents of a filter,
    channels first; ``name`` is for the constant of ones.
    """
    axes, taps = len(window) - 1, math.prod(window[1:])
    extents = static_shape_of(value)
    separable = extents is not None and taps >= LEAST_TAPS and window[0] * taps >= LEAST_ELEMENTS
    ones = np.ones((1, window[0], *([1] * axes if separable else window[1:])), np.int8)
    filters = emitter.constants.make(ones, name, ())
    if not separable or extents is None:
        return emitter.emit(rebuild_call(call, value, filters, padding=padding, out_dtype="int32"))
    single = {"padding": [0] * len(padding), "strides": [1] * axes, "dilation": [1] * axes}
    sums = emitter.emit(rebuild_call(call, value, filters, out_dtype="int32", **single))
    sides = list(zip(padding[:axes], padding[axes:], strict=True))
    if any(padding):
        sums = emitter.emit(relax.op.nn.pad(sums, [0, 0, 0, 0, *(side for pair in sides for side in pair)]))
    strides, dilations = map(int, call.attrs.strides), map(int, call.attrs.dilation)
    steps = zip(window[1:], strides, dilations, sides, extents[2:], strict=True)
    for axis, (size, stride, dilation, pair, extent) in enumerate(steps, 2):
        reach = (size - 1) * dilation + 1
        last = (int(extent) + sum(pair) - reach) // stride * stride
        total = None
        for tap in range(size):
            begin = tap * dilation
            part = emitter.emit(relax.op.strided_slice(sums, [axis], [begin], [begin + last + 1], [stride]))
            total = part if total is None else emitter.emit(relax.op.add(total, part))
        sums = total
    return sums

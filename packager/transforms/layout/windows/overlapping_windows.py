"""Transposed convolutions as a product and a sum: the window of each pixel, and windows added up where they overlap.

With few output channels this takes less than phases: taps of all phases are columns of one product, which fill vectors,
and each pixel is read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from packager.graph.dataflow import extents_of, static_shape_of
from packager.graph.windows.col2im import Windows, col2im
from packager.transforms.layout.output_phases import CALL, MOVE, VECTOR, Axis, AxisPlan, Channels, cost_of

# Estimates of time, in multiply-adds of a product: writing an element of a window and adding it, the same where they
# exceed the L2 cache, and writing one of the result.
ADDED, ADDED_FAR, WRITTEN = 3, 16, 4
# The maximum elements of windows that stay in that cache.
NEAR = 1 << 18
# The longest stride of columns, and the maximum of their taps, for which code is written out.
MOST_STRIDE, MOST_TAPS = 64, 64
CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def overlaps(axes: Sequence[Axis], plans: Sequence[AxisPlan] | None, channels: Channels) -> bool:
    """Whether this is estimated to be faster than phases as planned, of which there may be none."""
    last, rows = axes[-1], math.prod(axis.extent or 0 for axis in axes)
    if channels.groups > 1 or not rows or last.stride > MOST_STRIDE or last.kernel > MOST_TAPS:
        return False
    elements = rows * channels.outputs * math.prod(axis.kernel for axis in axes)
    results = channels.outputs * math.prod(axis.stride * (axis.extent or 0) + axis.surplus for axis in axes)
    cost = 2 * CALL + elements * (channels.inputs + (ADDED if elements <= NEAR else ADDED_FAR)) + results * WRITTEN
    # The sum has planes: what follows many channels reads channels last, of few it is the end of a model.
    permuted = results * MOVE
    if channels.outputs >= VECTOR:
        cost += permuted
    return plans is None or cost < cost_of(axes, plans, channels) + (permuted / 2 if channels.outputs < VECTOR else 0)


def add_windows(emit: Callable[..., Any], call: relax.Call, data: Any, weight: Any, name: str) -> Any:
    """Emit a transposed convolution of NC... and IO..., of static extents, as a product and a sum; return the sum."""
    rank, attrs = len(static_shape_of(weight) or ()) - 2, call.attrs
    inputs, outputs, *kernel = static_shape_of(weight) or ()
    rows = outputs * math.prod(kernel)
    matrix = emit(relax.op.permute_dims(emit(relax.op.reshape(weight, [inputs, rows])), [1, 0]))
    filters = emit(relax.op.reshape(matrix, [rows, inputs, *[1] * rank]))
    product = emit(CONVOLUTIONS[rank](data, filters, out_dtype=str(call.ty.dtype)), name)
    extents, counts = (extents_of(value) or () for value in (call, data))
    windows = Windows(
        extents=tuple(int(extent) for extent in extents[2:]),
        size=tuple(kernel),
        counts=tuple(int(count) for count in counts[2:]),
        strides=tuple(int(stride) for stride in attrs.strides),
        dilations=tuple(int(step) for step in attrs.dilation),
        before=tuple(int(pad) for pad in attrs.padding)[:rank],
    )
    return emit(col2im(product, windows), name)

"""Writes the statistics of each channel of an image with channels last, for GPUs: reductions of columns.

A variance is the mean of squares less the square of the mean, in float32: a reduction that computes its own mean, or
reads it, has no schedule by columns. ``nn.instance_norm`` (Ulyanov et al. 2016, arXiv:1607.08022) is a scale and a
shift of each channel of an image.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, extents_of, operator_of, same

_OP = relax.op


def is_image_norm(flow: Dataflow, call: relax.Call) -> bool:
    """Whether it is the variance of each channel of images [N, C, ...], or their normalization by it, in float32.

    The images were of half precision: of float32 the difference of squares would lose bits.
    """
    name, data = operator_of(call), call.args[0]
    extents = extents_of(data) if name in ("variance", "nn.instance_norm") else None
    cast = None if extents is None else flow.call(data, "astype")
    if extents is None or cast is None or str(cast.args[0].ty.dtype) not in HALVES or str(data.ty.dtype) != "float32":
        return False
    if len(extents) < 3 or not all(isinstance(extent, tirx.IntImm) for extent in extents[2:]):
        return False
    is_variance, rank = name == "variance", len(extents)
    axes = {int(axis) % rank for axis in (call.attrs.axis if is_variance else call.attrs.axes) or ()}
    whole = axes - {0} == set(range(2, rank)) and (0 not in axes or same(extents[0], 1))
    return whole and (bool(call.attrs.keepdims) if is_variance else int(call.attrs.channel_axis) % rank == 1)


def write_image_norm(builder: relax.BlockBuilder, call: relax.Call, source: Any, data: Any, vectors: list[Any]) -> Any:
    """Return the value on ``data`` [N, ..., C], a cast of ``source``; ``vectors`` are its other operands, [C]."""
    emit, axes = builder.emit, [*range(1, data.ty.ndim - 1)]
    mean = emit(_OP.mean(data, axes, keepdims=True))
    count = relax.const(float(math.prod(int(extent) for extent in data.ty.shape.values[1:-1])), "float32")
    squares = emit(_OP.divide(builder.emit_te(_squares, source, primfunc_name_hint="squares"), count))
    spread = emit(_OP.subtract(squares, emit(_OP.multiply(mean, mean))))
    variance = _OP.maximum(spread, relax.const(0.0, "float32"))
    if operator_of(call) == "variance":
        return variance
    (gamma, beta), attributes = vectors, call.attrs
    epsilon = relax.const(float(attributes.epsilon), "float32")
    scale = emit(_OP.rsqrt(emit(_OP.add(emit(variance), epsilon))))
    if attributes.scale:
        scale = emit(_OP.multiply(scale, gamma))
    shift = emit(_OP.negative(emit(_OP.multiply(mean, scale))))
    if attributes.center:
        shift = emit(_OP.add(shift, beta))
    return _OP.add(emit(_OP.multiply(data, scale)), shift)


def _squares(data: Any) -> Any:
    """Return the sums of squares of each channel, [N, 1, ..., C]."""
    places = [te.reduce_axis((0, extent), name=f"place{axis}") for axis, extent in enumerate(data.shape[1:-1])]

    def squares(*at: Any) -> Any:
        element = data[(at[0], *places, at[-1])].astype("float32")
        return te.sum(element * element, axis=places)

    return te.compute((data.shape[0], *[1] * len(places), data.shape[-1]), squares, name="squares")

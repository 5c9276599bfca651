"""Padding, slices, normalizations and resizing with channels last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax

from packager.graph import resize
from packager.graph.dataflow import Dataflow, operator_of, static_shape_of
from packager.graph.normalize import attributes_of_call, normalize
from packager.transforms.layout.layouts import last_axis, to_last

RESIZES = ("packager.resize", "image.resize2d")


def move_last(call: relax.Call, in_last: Callable[[Any], Any]) -> Any | None:
    """Return such an operator on NC... as one on N...C, or None for other operators.

    ``in_last`` returns an operand with channels last.
    """
    rank = int(call.ty.ndim)
    match operator_of(call):
        case "nn.pad":
            widths = list(map(int, call.attrs.pad_width))
            moved = [width for axis in to_last(rank) for width in widths[2 * axis : 2 * axis + 2]]
            return relax.op.nn.pad(in_last(call.args[0]), moved, call.attrs.pad_mode, float(call.attrs.pad_value))
        case "strided_slice" if isinstance(call.args[1], relax.Tuple):
            data, axes, *rest = call.args
            moved = [relax.prim_value(last_axis(int(axis.value), rank)) for axis in axes.fields]
            return relax.Call(call.op, [in_last(data), relax.Tuple(moved), *rest], call.attrs, call.ty_args)
        case "image.resize2d" if call.attrs.layout == "NCHW":
            kept = (
                "method",
                "coordinate_transformation_mode",
                "rounding_method",
                "cubic_alpha",
                "cubic_exclude",
            )
            how = {name: getattr(call.attrs, name) for name in (*kept, "extrapolation_value")}
            roi = tuple(float(edge) for edge in call.attrs.roi)
            return relax.op.image.resize2d(in_last(call.args[0]), call.args[1], roi=roi, layout="NHWC", **how)
        case "packager.normalize":
            attributes = attributes_of_call(call.attrs)
            channel = attributes.channel_axis
            axes = tuple(sorted(last_axis(axis, rank) for axis in attributes.axes))
            channel = None if channel is None else last_axis(channel, rank)
            return normalize(in_last(call.args[0]), replace(attributes, axes=axes, channel_axis=channel))
        case "packager.resize" if isinstance(call.args[1], relax.Tuple):
            resizing = resize.attributes_of_call(call.attrs)
            axes = tuple(last_axis(axis, rank) for axis in resizing.axes)
            data, tables = call.args
            return resize.resize(in_last(data), tables.fields, replace(resizing, axes=axes))
    return None


def enlarges_a_result(flow: Dataflow, variable: Any, call: relax.Call) -> bool:
    """Whether an image that the model returns is enlarged: it is better to turn what is read, which is smaller."""
    if operator_of(call) not in RESIZES or not flow.is_result(variable):
        return False
    before, after = static_shape_of(call.args[0]), static_shape_of(variable)
    return before is not None and after is not None and math.prod(after) > math.prod(before)

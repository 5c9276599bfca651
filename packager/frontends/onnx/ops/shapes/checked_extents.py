"""Converters of Squeeze and Split of symbolic extents, whose demands each run checks.

ONNX operators Squeeze (versions 1 to 25) and Split (1 to 18). TVM's importer refuses to drop an axis whose extent it
cannot prove to be 1, which exporters write for what a tracer has seen: one row of a one-hot mask, the last step of a
recurrent network. It takes constant sizes of parts only, and gives the last part whatever the others leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, constant, extents, opset, optional, require
from packager.frontends.onnx.ops.shapes.arithmetic import known
from packager.graph.dataflow import shape_of

# Since this version the last part of an even split may be smaller.
FIRST_UNEVEN = 18


def _squeeze(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Drop axes of extent 1. Without ``axes`` symbolic extents are kept, and each run checks that they are not 1."""
    data, shape = inputs[0], shape_of(inputs[0])
    if shape is None or all(isinstance(extent, int) for extent in shape):
        return convert("Squeeze", list(inputs), attributes)
    given = optional(inputs, 1)
    axes = attributes.get("axes") if given is None else constant(given, attributes)
    if axes is None and given is not None:
        return convert("Squeeze", list(inputs), attributes)
    if axes is None:
        for extent in shape:
            if not isinstance(extent, int):
                require(attributes, 2, "<=", extent)
        return relax.op.squeeze(data, [axis for axis, extent in enumerate(shape) if extent == 1])
    dropped = {int(axis) % len(shape) for axis in axes}
    for axis in dropped:
        require(attributes, shape[axis], "==", 1)
    kept = [extent for axis, extent in enumerate(shape) if axis not in dropped]
    if all(isinstance(shape[axis], int) for axis in dropped):
        return relax.op.squeeze(data, sorted(dropped))
    return relax.op.reshape(data, kept)


def _split(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    data, shape = inputs[0], extents(inputs[0])
    axis = attributes.get("axis", 0) % len(shape)
    extent, given = shape[axis], optional(inputs, 1)
    sizes = attributes.get("split") if given is None else known(given, attributes)
    if sizes is None and given is not None:
        raise ValueError("the sizes of the parts are not constant: freeze them with --freeze")
    if sizes is None:
        count = attributes["tvm_custom"]["num_outputs"]
        if not isinstance(extent, int) and opset(attributes) < FIRST_UNEVEN:
            require(attributes, extent, "==", tirx.floordiv(extent, count) * count)
        return convert("Split", list(inputs), attributes)
    for size in sizes:
        require(attributes, 0, "<=", size)
    require(attributes, extent, "==", sum(sizes))
    if given is None or constant(given, attributes) is not None:
        return convert("Split", list(inputs), attributes)
    parts, begin = [], tirx.IntImm("int64", 0)
    for size in sizes:
        bounds = ([begin], [begin + size])
        parts.append(builder.emit(relax.op.strided_slice(data, [axis], *bounds, assume_inbound=True)))
        begin = begin + size
    return relax.Tuple(parts)


CONVERTERS: Mapping[str, Converter] = {"Squeeze": _squeeze, "Split": _split}

"""Normalizations. Half precision is normalized in float32, as packager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packager.bundle.dtypes import HALVES
from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, rank, static_extents
from packager.emit.ops.movement import reshaped
from packager.emit.ops.reductions import reduce, variance
from packager.graph.normalize import attributes_of_call


def _wide(writer: FunctionWriter, expr: Any) -> tuple[str, str]:
    """Return a tensor's value in the type that it is normalized in, and the type."""
    value, dtype = writer.value(expr), dtype_of(expr)
    return (writer.cast(value, "float32"), "float32") if dtype in HALVES else (value, dtype)


def _normalized(writer: FunctionWriter, value: str, axes: list[int], epsilon: float, dtype: str, centered: bool) -> str:
    """Return (value - mean) / sqrt(variance + epsilon) along axes; with a mean of zero unless centered."""
    if centered:
        shifted = str(writer.node("Sub", [value, reduce(writer, "ReduceMean", value, axes)]))
        spread = variance(writer, value, axes)
    else:
        shifted = value
        spread = reduce(writer, "ReduceMean", str(writer.node("Mul", [value, value])), axes)
    deviation = writer.node("Sqrt", [writer.node("Add", [spread, writer.constant(epsilon, dtype)])])
    return str(writer.node("Div", [shifted, deviation]))


def _layer_normalized(
    writer: FunctionWriter, value: str, shape: Sequence[Any], epsilon: float, dtype: str, first: int
) -> str | None:
    """Return the normalization along all axes from ``first`` on, or None if an extent is symbolic there."""
    if not all(isinstance(extent, int) for extent in shape[first:]):
        return None
    ones = writer.constant(np.ones(shape[first:]), dtype)
    return str(writer.node("LayerNormalization", [value, ones], axis=first, epsilon=epsilon))


def _scaled(writer: FunctionWriter, value: str, dtype: str, axes: Sequence[int], ranks: int, *both: Any) -> str:
    """Multiply by the first and add the second tensor, of the extents of ``axes``; either may be None."""
    for operator, expr in zip(("Mul", "Add"), both, strict=False):
        if expr is None:
            continue
        factor = writer.value(expr) if dtype_of(expr) == dtype else writer.cast(writer.value(expr), dtype)
        shape: list[Any] = [1] * ranks
        for axis, extent in zip(axes, extents(expr), strict=True):
            shape[axis] = extent
        if list(axes) != list(range(ranks - len(axes), ranks)):
            factor = reshaped(writer, factor, extents(expr), shape)
        value = str(writer.node(operator, [value, factor]))
    return value


def _layer_norm(writer: FunctionWriter, call: Any) -> str:
    (data, scale, shift), attrs = call.args, call.attrs
    ranks, epsilon = rank(data), float(attrs.epsilon)
    axes = sorted(int(axis) % ranks for axis in attrs.axes)
    value, dtype = _wide(writer, data)
    first = axes[0]
    if axes == list(range(first, ranks)) and attrs.scale:
        operands = [value, _as(writer, scale, dtype), *([_as(writer, shift, dtype)] if attrs.center else [])]
        made = str(writer.node("LayerNormalization", operands, axis=first, epsilon=epsilon))
    else:
        made = _normalized(writer, value, axes, epsilon, dtype, centered=True)
        made = _scaled(
            writer, made, dtype, axes, ranks, scale if attrs.scale else None, shift if attrs.center else None
        )
    return _back(writer, made, dtype, call)


def _as(writer: FunctionWriter, expr: Any, dtype: str) -> str:
    value = writer.value(expr)
    return value if dtype_of(expr) == dtype else writer.cast(value, dtype)


def _back(writer: FunctionWriter, value: str, dtype: str, call: Any) -> str:
    return value if dtype_of(call) == dtype else writer.cast(value, dtype_of(call))


def _rms_norm(writer: FunctionWriter, call: Any) -> str:
    data, weight = call.args
    axes = sorted(int(axis) % rank(data) for axis in call.attrs.axes)
    value, dtype = _wide(writer, data)
    made = _normalized(writer, value, axes, float(call.attrs.epsilon), dtype, centered=False)
    return _back(writer, _scaled(writer, made, dtype, axes, rank(data), weight), dtype, call)


def _grouped(writer: FunctionWriter, value: str, shape: Sequence[Any], groups: int, epsilon: float, dtype: str) -> str:
    """Return the instance normalization of groups of channels; channels are the second axis."""
    if groups != shape[1]:
        inner = shape[1] // groups
        for extent in shape[2:]:
            inner = extent * inner
        value = reshaped(writer, value, shape, [shape[0], groups, inner])
    ones, zeros = writer.constant(np.ones(groups), dtype), writer.constant(np.zeros(groups), dtype)
    made = str(writer.node("InstanceNormalization", [value, ones, zeros], epsilon=epsilon))
    return made if groups == shape[1] else reshaped(writer, made, [shape[0], groups, inner], shape)


def _group_norm(writer: FunctionWriter, call: Any) -> str:
    (data, scale, shift), attrs = call.args, call.attrs
    ranks, axis = rank(data), int(attrs.channel_axis) % rank(data)
    axes = sorted(int(a) % ranks for a in attrs.axes)
    if axis != 1 or axes != list(range(2, ranks)):
        raise CannotWriteError("its channels are not the second axis")
    static_extents(data, [1])
    value, dtype = _wide(writer, data)
    made = _grouped(writer, value, extents(data), int(attrs.num_groups), float(attrs.epsilon), dtype)
    both = (scale if attrs.scale else None, shift if attrs.center else None)
    return _back(writer, _scaled(writer, made, dtype, [1], ranks, *both), dtype, call)


def _instance_norm(writer: FunctionWriter, call: Any) -> str:
    (data, scale, shift), attrs = call.args, call.attrs
    ranks, axis = rank(data), int(attrs.channel_axis) % rank(data)
    axes = sorted(int(a) % ranks for a in attrs.axes)
    value, dtype = _wide(writer, data)
    made = _normalized(writer, value, axes, float(attrs.epsilon), dtype, centered=True)
    both = (scale if attrs.scale else None, shift if attrs.center else None)
    return _back(writer, _scaled(writer, made, dtype, [axis], ranks, *both), dtype, call)


def _batch_norm(writer: FunctionWriter, call: Any) -> list[str]:
    """Write the inference form; the other results are the given mean and variance."""
    (data, scale, shift, mean, spread), attrs = call.args, call.attrs
    if bool(attrs.training):
        raise CannotWriteError("it is in training mode")
    ranks, axis, dtype = rank(data), int(attrs.axis) % rank(data), dtype_of(data)
    given = [mean, spread]
    if axis == 1 and attrs.scale and attrs.center:
        inputs = [writer.value(operand) for operand in call.args]
        made = str(writer.node("BatchNormalization", inputs, epsilon=float(attrs.epsilon)))
        return [made, *map(writer.value, given)]
    shape: list[Any] = [1] * ranks
    shape[axis] = extents(mean)[0]
    average, width = (reshaped(writer, writer.value(expr), extents(expr), shape) for expr in given)
    deviation = writer.node("Sqrt", [writer.node("Add", [width, writer.constant(float(attrs.epsilon), dtype)])])
    made = str(writer.node("Div", [writer.node("Sub", [writer.value(data), average]), deviation]))
    both = (scale if attrs.scale else None, shift if attrs.center else None)
    return [_scaled(writer, made, dtype, [axis], ranks, *both), *map(writer.value, given)]


def _normalize(writer: FunctionWriter, call: Any) -> str:
    """Write packager's own operator: along rows, axes or groups of channels, without scale and shift."""
    (data,), attributes = call.args, attributes_of_call(call.attrs)
    value, dtype = _wide(writer, data)
    ranks, shape = rank(data), extents(data)
    axes = sorted(axis % ranks for axis in attributes.axes)
    channel = attributes.channel_axis
    if channel is not None:
        others = [axis for axis in range(1, ranks) if axis != channel]
        if axes != others or not attributes.centered:
            raise CannotWriteError("its groups are not of whole images")
        static_extents(data, [channel])
        first = [0, channel, *others]
        turned = writer.transpose(value, first)
        whole = [shape[axis] for axis in first]
        made = _grouped(writer, turned, whole, attributes.groups, attributes.epsilon, dtype)
        return writer.transpose(made, [first.index(axis) for axis in range(ranks)])
    rows = None
    if attributes.centered and axes == list(range(axes[0], ranks)):
        rows = _layer_normalized(writer, value, shape, attributes.epsilon, dtype, axes[0])
    return rows or _normalized(writer, value, axes, attributes.epsilon, dtype, attributes.centered)


RULES: Rules = {
    "nn.batch_norm": _batch_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "packager.normalize": _normalize,
}

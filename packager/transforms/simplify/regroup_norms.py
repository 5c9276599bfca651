"""Moves normalizations out of the reshapes that form groups of channels.

PyTorch's ONNX exporter writes group normalization as [N, C, H, W] -> [N, G, C / G * H * W], an instance normalization
with a scale and a shift for each group, and a reshape back. Keras splits the last axis into [..., G, C / G]. Both
become one normalization of the tensor as it was, with groups, and constants for each channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.sym import Analyzer

from packager.bundle.arrays import Array
from packager.graph.dataflow import (
    Dataflow,
    computed_from_constants,
    extents_of,
    operator_of,
    same,
    scalar_of,
    shape_of,
)
from packager.graph.identity import IdentityMap
from packager.graph.normalize import OPERATOR, Normalization, attributes_of_call, normalize
from packager.graph.rewrite import map_bindings
from packager.ir.model import NamedArray

# Operators with a constant that go with a normalization, and the constant that makes each the identity.
FOLLOWERS = {"multiply": 1.0, "divide": 1.0, "add": 0.0, "subtract": 0.0}


def regroup_norms(
    module: tvm.IRModule, num_inputs: int, constants: Mapping[str, NamedArray], *, of_channels: bool = False
) -> tvm.IRModule:
    """Move normalizations of ``main`` out of reshapes; leaves reshapes of reshapes, and dead code.

    ``constants`` are the values of the parameters after ``num_inputs``, in order. ``of_channels``: only normalizations
    of several groups of several channels.
    """
    mover = _Mover(module["main"], num_inputs, constants, of_channels=of_channels)
    changed = map_bindings(module, mover.moved)
    return relax.transform.Normalize()(changed) if mover.sources else module


@dataclass(frozen=True)
class _Grouping:
    """How a reshape forms groups of the channels of ``axis``: its result has them along ``outer``.

    ``inner`` is the axis of the result that has the channels of a group alone, if there is one.
    """

    axis: int
    groups: int
    channels: int
    outer: int
    inner: int | None


@dataclass(frozen=True)
class _Source:
    """A variable in the layout before the reshape; without ``grouping`` statistics are of all channels."""

    variable: Any
    grouping: _Grouping | None


class _Mover:
    """``sources`` maps variables in the layout of a reshape to those that they are reshapes of now."""

    def __init__(
        self, main: relax.Function, num_inputs: int, constants: Mapping[str, NamedArray], *, of_channels: bool
    ) -> None:
        self.flow, self.of_channels = Dataflow(main), of_channels
        self.constant = computed_from_constants(main, num_inputs)
        arrays = (constant.array for constant in constants.values())
        self.arrays: IdentityMap[Array] = IdentityMap(zip(main.params[num_inputs:], arrays, strict=True))
        self.sources: IdentityMap[_Source] = IdentityMap()

    def moved(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one."""
        variable, value = binding.var, binding.value
        name = operator_of(value)
        if name == OPERATOR:
            reshape = self.flow.call(value.args[0], "reshape")
            found = None if reshape is None else _regrouped(reshape, attributes_of_call(value.attrs))
            if found is None or (self.of_channels and not _is_of_channels(found[1])):
                return [binding]
            attributes, grouping = found
            return self._bound(variable, normalize(reshape.args[0], attributes), grouping)
        if name == "astype" and value.args[0] in self.sources:
            source = self.sources[value.args[0]]
            return self._bound(variable, relax.op.astype(source.variable, variable.ty.dtype), source.grouping)
        if name in FOLLOWERS:
            return self._follow(binding, name)
        return [binding]

    def _bound(self, variable: Any, value: Any, grouping: _Grouping | None) -> list[Any]:
        """Bind a value in the layout before the reshape, and ``variable`` to its reshape."""
        whole = relax.TensorType(value.args[0].ty.shape, variable.ty.dtype)  # halves are normalized to float32
        inner = type(variable)(f"{variable.name}_whole", whole)
        self.sources[variable] = _Source(inner, grouping)
        view = relax.op.reshape(inner, extents_of(variable))
        return [relax.VarBinding(inner, value), relax.VarBinding(variable, view)]

    def _follow(self, binding: Any, name: str) -> list[Any]:
        """Move an operator whose other operand is a number, or a constant for each group or channel."""
        left, right = binding.value.args
        if right in self.sources and name in ("multiply", "add"):
            left, right = right, left
        source = self.sources.get(left)
        if source is None or right in self.sources or not same(shape_of(left), shape_of(binding.var)):
            return [binding]
        if self._is_identity(right, FOLLOWERS[name]):
            self.sources[binding.var] = source
            return [relax.VarBinding(binding.var, left)]
        constant = self._along_channels(right, source, len(shape_of(left) or ()))
        if constant is None:
            return [binding]
        return self._bound(binding.var, getattr(relax.op, name)(source.variable, constant), source.grouping)

    def _is_identity(self, operand: Any, neutral: float) -> bool:
        while (view := self.flow.call(operand, "reshape", "expand_dims", "broadcast_to")) is not None:
            operand = view.args[0]
        array = operand.value.numpy() if isinstance(operand, GenericConst) else self.arrays.get(operand)
        return array is not None and bool((array == neutral).all())

    def _along_channels(self, constant: Any, source: _Source, rank: int) -> Any | None:
        """Return a constant that broadcasts in the layout before the reshape, or None if there is none."""
        shape = shape_of(constant)
        if shape is None:
            return None
        if len(shape) == 0:
            return constant
        if (number := scalar_of(constant)) is not None:
            return relax.const(number, constant.ty.dtype)
        grouping = source.grouping
        known = isinstance(constant, GenericConst) or constant in self.constant
        if not known or grouping is None or not all(isinstance(e, int) for e in shape):
            return None
        extents = (*[1] * (rank - len(shape)), *shape)
        allowed = {grouping.outer, grouping.inner}
        if any(extent != 1 and axis not in allowed for axis, extent in enumerate(extents)):
            return None
        inner = 1 if grouping.inner is None else extents[grouping.inner]
        pair = relax.op.reshape(constant, [extents[grouping.outer], inner])
        spread = relax.op.broadcast_to(pair, [grouping.groups, grouping.channels // grouping.groups])
        after = len(shape_of(source.variable) or ()) - 1 - grouping.axis
        return relax.op.reshape(spread, [grouping.channels, *[1] * after])


def _is_of_channels(grouping: _Grouping | None) -> bool:
    return grouping is not None and 1 < grouping.groups < grouping.channels


def _regrouped(reshape: Any, attributes: Normalization) -> tuple[Normalization, _Grouping | None] | None:
    """Return a normalization of what ``reshape`` reads, equal to that of its result; None if there is none."""
    before, after = shape_of(reshape.args[0]), shape_of(reshape)
    if before is None or after is None or attributes.channel_axis is not None or same(before, after):
        return None
    first = min(attributes.axes)
    if attributes.axes == tuple(range(first, len(after))):
        if first < len(before) and same(before[:first], after[:first]):  # of all that follows
            return replace(attributes, axes=tuple(range(first, len(before)))), None
        found = _merged(before, after, first)
    else:
        found = _split(before, after, attributes.axes)
    if found is None:
        return None
    axes, grouping = found
    return replace(attributes, axes=axes, channel_axis=grouping.axis, groups=grouping.groups), grouping


def _merged(before: tuple[Any, ...], after: tuple[Any, ...], first: int) -> tuple[tuple[int, ...], _Grouping] | None:
    """Match [N, C, ...] -> [N, G, ...] or [N * G, ...], where statistics are of all that follows."""
    for axis in range(1, len(before) - 1):
        channels = before[axis]
        if not isinstance(channels, int):
            continue
        if first == axis + 1 and same(before[:axis], after[:axis]):
            groups = after[axis]
        elif axis == first == 1:
            groups = _quotient(after[0], before[0])
        else:
            continue
        if not isinstance(groups, int) or groups == 0 or channels % groups:
            continue
        alone = first < len(after) and after[first] == channels // groups and len(after) > first + 1
        inner = first if alone else None
        grouping = _Grouping(axis, groups, channels, first - 1, inner)
        return tuple(range(axis + 1, len(before))), grouping
    return None


def _split(
    before: tuple[Any, ...], after: tuple[Any, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], _Grouping] | None:
    """Match a reshape that splits an axis into groups and their channels."""
    for axis, channels in enumerate(before):
        pair = after[axis : axis + 2]
        if len(pair) < 2 or not all(isinstance(extent, int) for extent in (channels, *pair)):
            continue
        if pair[0] * pair[1] != channels or not same(before, (*after[:axis], channels, *after[axis + 2 :])):
            continue
        if axis in axes or axis + 1 not in axes:
            continue
        others = tuple(a - (a > axis) for a in axes if a != axis + 1)
        return others, _Grouping(axis, pair[0], channels, axis, axis + 1)
    return None


def _quotient(extent: Any, divisor: Any) -> Any:
    """Return an extent divided by another if that is an integer, else None."""
    if isinstance(extent, int) and isinstance(divisor, int):
        return extent // divisor if divisor and extent % divisor == 0 else None
    quotient = Analyzer().simplify(extent // divisor)
    return int(quotient) if hasattr(quotient, "value") and same(extent, divisor * int(quotient)) else None

"""Lowers ``packager.normalize``, where no backend took it: with TVM's operators, or, for GPUs, of rows as one PrimFunc
and of other axes that follow each other as reductions of columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import bindings_of, extents_of, operator_of, same
from packager.graph.normalize import NAME, OPERATOR, Normalization, attributes_of_call
from packager.graph.rewrite import with_main
from packager.ir.pattern_kinds import OPAQUE, OUT_ELEMENTWISE_FUSABLE
from packager.lower.legalize.accumulate import FULL

_Replace = Callable[[relax.BlockBuilder, Any, Normalization], relax.Expr]


def expand_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Write the calls in ``main`` out.

    Means are computed in two passes, never as the mean of squares minus the square of the mean.
    """
    return replace_norms(module, _expand)


def fuse_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Lower the calls in ``main`` that normalize rows or columns to PrimFuncs, and write the others out."""

    def fuse(builder: relax.BlockBuilder, data: Any, attributes: Normalization) -> relax.Expr:
        last, axes = len(data.ty.shape) - 1, attributes.axes
        follows = list(axes) == list(range(axes[0], axes[-1] + 1))
        if follows and axes[-1] == last and attributes.channel_axis is None:
            return _fuse(builder, data, attributes)
        whole = attributes.channel_axis is None or (attributes.channel_axis, axes[-1]) == (last, last - 1)
        return (_normalize_columns if follows and whole else _expand)(builder, data, attributes)

    return replace_norms(module, fuse)


def replace_norms(module: tvm.IRModule, replace: _Replace) -> tvm.IRModule:
    """Replace the calls in ``main`` by what ``replace(builder, data, attributes)`` returns, with PrimFuncs it adds."""
    if not any(operator_of(binding.value) == OPERATOR for binding in bindings_of(module["main"])):
        return module
    replacer = _Replacer(module, replace)
    main = replacer.visit_expr(module["main"])
    return with_main(replacer.builder_.get(), main)


@mutator
class _Replacer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, replace: _Replace) -> None:
        super().__init__(module)
        self.replace = replace

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != NAME:
            return call
        return self.replace(self.builder_, call.args[0], attributes_of_call(call.attrs))


def _expand(builder: relax.BlockBuilder, data: Any, attributes: Normalization) -> relax.Expr:
    if str(data.ty.dtype) in HALVES:
        data = builder.emit(relax.op.astype(data, FULL))
    shape, axes, source = list(extents_of(data) or ()), set(attributes.axes), data
    channel = attributes.channel_axis
    if channel is not None:
        groups = attributes.groups
        split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
        data = builder.emit(relax.op.reshape(data, split))
        axes = {axis + (axis > channel) for axis in axes} | {channel + 1}
    dtype, reduced = str(data.ty.dtype), sorted(axes)
    if attributes.centered:
        data = builder.emit(relax.op.subtract(data, builder.emit(relax.op.mean(data, reduced, keepdims=True))))
    squares = builder.emit(relax.op.multiply(data, data))
    variance = builder.emit(relax.op.mean(squares, reduced, keepdims=True))
    shifted = builder.emit(relax.op.add(variance, relax.const(attributes.epsilon, dtype)))
    result = relax.op.divide(data, builder.emit(relax.op.sqrt(shifted)))
    return result if channel is None else relax.op.reshape(builder.emit(result), extents_of(source))


def _fuse(builder: relax.BlockBuilder, data: Any, attributes: Normalization) -> relax.Expr:
    """Return the normalization along one or several last axes as one PrimFunc.

    Schedules of rows hold a row in registers between its passes.
    """
    fusable = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
    return builder.call_te(normalization_of(attributes), data, primfunc_name_hint="normalize", primfunc_attrs=fusable)


def normalization_of(attributes: Normalization) -> Callable[[te.Tensor], te.Tensor]:
    """Return what normalizes a tensor along its last axes: it reads half precision and computes in float32."""

    def compute(x: te.Tensor) -> te.Tensor:
        wide = x if x.dtype == FULL else topi.cast(x, FULL)
        axes = list(attributes.axes)
        length = topi.cast(math.prod(x.shape[axis] for axis in axes), FULL)
        if attributes.centered:
            wide = topi.subtract(wide, topi.divide(topi.sum(wide, axes, keepdims=True), length))
        variance = topi.divide(topi.sum(topi.multiply(wide, wide), axes, keepdims=True), length)
        return topi.multiply(wide, topi.rsqrt(topi.add(variance, tvm.tirx.const(attributes.epsilon, FULL))))

    return compute


def _normalize_columns(builder: relax.BlockBuilder, data: Any, attributes: Normalization) -> relax.Expr:
    """Return the normalization along axes before the last ones, by reductions of rows and an elementwise function.

    The reductions are of channels, whatever the groups: they read whole rows. Groups are averaged afterwards.
    """
    shape, first, end = extents_of(data) or (), attributes.axes[0], attributes.axes[-1] + 1
    parts = shape[:first], shape[first:end], shape[end:]
    outer, rows, channels = (math.prod(part, start=tvm.tirx.IntImm("int64", 1)) for part in parts)
    groups = channels if attributes.channel_axis is None else tvm.tirx.IntImm("int64", attributes.groups)
    is_flat = len(shape) == 3 and first == 1
    flat = data if is_flat else builder.emit(relax.op.reshape(data, [outer, rows, channels]))
    statistics: list[Any] = []
    if attributes.centered:
        statistics.append(_mean(builder, groups, lambda x: x, flat))
    statistics.append(_mean(builder, groups, lambda x, *mean: _square(x - mean[0] if mean else x), flat, *statistics))

    def compute(x: te.Tensor, *given: te.Tensor) -> te.Tensor:
        def element(i: Any, r: Any, c: Any) -> Any:
            *means, variance = (each(i, _group_of(c, channels, groups)) for each in given)
            value = x(i, r, c).astype(FULL)
            scale = tvm.tirx.rsqrt(variance + tvm.tirx.const(attributes.epsilon, FULL))
            return (value - means[0] if means else value) * scale

        return te.compute(x.shape, element, name="normalized")

    result = builder.call_te(compute, flat, *statistics, primfunc_name_hint="normalize")
    return result if is_flat else relax.op.reshape(builder.emit(result), shape)


def _square(value: Any) -> Any:
    return value * value


def _group_of(channel: Any, channels: Any, groups: Any) -> Any:
    return channel if same(groups, channels) else channel // (channels // groups)


def _mean(builder: relax.BlockBuilder, groups: Any, term: Callable[..., Any], data: Any, *operands: Any) -> Any:
    """Bind the means, [outer, groups] of float32, of ``term(x, statistics...)`` of [outer, rows, channels]."""
    _, rows, channels = extents_of(data) or ()

    def averaged(x: te.Tensor, *statistics: te.Tensor) -> te.Tensor:
        row = te.reduce_axis((0, rows), name="row")

        def element(i: Any, c: Any) -> Any:
            given = (each(i, _group_of(c, channels, groups)) for each in statistics)
            return te.sum(term(x(i, row, c).astype(FULL), *given), axis=row)

        total = te.compute((x.shape[0], channels), element, name="column_sum")
        return te.compute(total.shape, lambda *at: total(*at) / rows.astype(FULL), name="column_mean")

    def over_groups(means: te.Tensor) -> te.Tensor:
        channel = te.reduce_axis((0, channels // groups), name="channel")
        total = te.compute(
            (means.shape[0], groups),
            lambda i, g: te.sum(means(i, g * (channels // groups) + channel), axis=channel),
            name="group_sum",
        )
        return te.compute(total.shape, lambda *at: total(*at) / (channels // groups).astype(FULL), name="group_mean")

    def bind(compute: Callable[..., te.Tensor], *given: Any) -> Any:
        alone = {"op_pattern": OPAQUE}  # what follows reads each mean many times
        return builder.emit(builder.call_te(compute, *given, primfunc_name_hint="mean", primfunc_attrs=alone))

    means = bind(averaged, data, *operands)
    return means if same(groups, channels) else bind(over_groups, means)

"""Lowers ``packager.normalize``, where no backend took it: with TVM's operators, or, of rows, as one PrimFunc."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.normalize import NAME, Normalization, attributes_of_call
from packager.graph.rewrite import with_main
from packager.lower.legalize.accumulate import FULL, HALVES

_Replace = Callable[[relax.BlockBuilder, Any, Normalization], relax.Expr]
OUT_ELEMENTWISE_FUSABLE = 4  # TVM's OpPatternKind: scale, shift and a cast that follow are fused


def expand_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Write the calls in ``main`` out.

    Means are computed in two passes, never as the mean of squares minus the square of the mean.
    """
    return _replaced(module, _expand)


def fuse_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Lower the calls in ``main`` that normalize rows to PrimFuncs, and write the others out."""
    return _replaced(module, lambda *call: (_fuse if call[2].of_rows(len(call[1].ty.shape)) else _expand)(*call))


def _replaced(module: tvm.IRModule, replace: _Replace) -> tvm.IRModule:
    name = NAME.removeprefix("relax.")
    if not any(operator_of(binding.value) == name for binding in bindings_of(module["main"])):
        return module
    replacer = _Replacer(module, replace)
    main = replacer.visit_expr(module["main"])
    return with_main(replacer.builder_.get(), main)  # with the PrimFuncs that it has added


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
    """Return the normalization of rows as one PrimFunc, which reads half precision and computes in float32.

    Schedules of rows hold a row in registers between its passes.
    """

    def compute(x: te.Tensor) -> te.Tensor:
        wide = x if x.dtype == FULL else topi.cast(x, FULL)
        length = topi.cast(x.shape[-1], FULL)
        if attributes.centered:
            wide = topi.subtract(wide, topi.divide(topi.sum(wide, -1, keepdims=True), length))
        variance = topi.divide(topi.sum(topi.multiply(wide, wide), -1, keepdims=True), length)
        return topi.multiply(wide, topi.rsqrt(topi.add(variance, tvm.tirx.const(attributes.epsilon, FULL))))

    fusable = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
    return builder.call_te(compute, data, primfunc_name_hint="normalize", primfunc_attrs=fusable)

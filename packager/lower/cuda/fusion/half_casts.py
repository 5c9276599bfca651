"""Lets means and average poolings read half precision and widen it: TVM fuses no cast with what reads it there."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import Dataflow, is_widening, operator_of
from packager.graph.rewrite import with_main
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE

POOLING = "nn.avg_pool2d"


def read_half_means(module: tvm.IRModule) -> tvm.IRModule:
    """Let means and poolings in ``main`` of what was cast from half precision to float32 read half precision."""
    flow = Dataflow(module["main"])
    if not any(_is_widened(flow, flow.value(variable)) for variable in flow.variables):
        return module
    reader = _HalfMeans(module, flow)
    main = reader.visit_expr(module["main"])
    return with_main(reader.builder_.get(), main)  # with the PrimFuncs that it has added


def _is_widened(flow: Dataflow, call: Any) -> bool:
    return operator_of(call) in ("mean", POOLING) and is_widening(flow.value(call.args[0]))


@mutator
class _HalfMeans(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, flow: Dataflow) -> None:
        super().__init__(module)
        self.flow = flow

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _is_widened(self.flow, call):
            return self.visit_expr_post_order(call)
        half, fusable = self.visit_expr(self.flow.value(call.args[0]).args[0]), {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        compute = partial(_mean if operator_of(call) == "mean" else _pooled, call.attrs)
        hint = operator_of(call).removeprefix("nn.")
        return self.builder_.call_te(compute, half, primfunc_name_hint=hint, primfunc_attrs=fusable)


def _mean(attrs: Any, x: te.Tensor) -> te.Tensor:
    axes = range(len(x.shape)) if attrs.axis is None else [int(axis) for axis in attrs.axis]
    total = topi.sum(topi.cast(x, "float32"), list(axes), attrs.keepdims)
    return topi.divide(total, topi.cast(math.prod(x.shape[axis] for axis in axes), "float32"))


def _pooled(attrs: Any, x: te.Tensor) -> te.Tensor:
    return topi.nn.pool2d(
        topi.cast(x, "float32"),
        kernel=attrs.pool_size,
        stride=attrs.strides,
        dilation=attrs.dilation,
        padding=attrs.padding,
        pool_type="avg",
        ceil_mode=attrs.ceil_mode,
        layout=attrs.layout,
        count_include_pad=attrs.count_include_pad,
    )

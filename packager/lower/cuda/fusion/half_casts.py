"""Lets means read half precision and widen it: TVM fuses nothing with a mean that precedes it, such as a cast."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import Dataflow, is_widening, operator_of
from packager.graph.rewrite import with_main
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE


def read_half_means(module: tvm.IRModule) -> tvm.IRModule:
    """Let means in ``main`` of what was cast from half precision to float32 read half precision."""
    flow = Dataflow(module["main"])
    if not any(_is_widened_mean(flow, flow.value(variable)) for variable in flow.variables):
        return module
    reader = _HalfMeans(module, flow)
    main = reader.visit_expr(module["main"])
    return with_main(reader.builder_.get(), main)  # with the PrimFuncs that it has added


def _is_widened_mean(flow: Dataflow, call: Any) -> bool:
    return operator_of(call) == "mean" and is_widening(flow.value(call.args[0]))


@mutator
class _HalfMeans(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, flow: Dataflow) -> None:
        super().__init__(module)
        self.flow = flow

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _is_widened_mean(self.flow, call):
            return self.visit_expr_post_order(call)
        attrs, half = call.attrs, self.flow.value(call.args[0]).args[0]
        axes = range(len(half.ty.shape)) if attrs.axis is None else [int(axis) for axis in attrs.axis]

        def compute(x: te.Tensor) -> te.Tensor:
            total = topi.sum(topi.cast(x, "float32"), list(axes), attrs.keepdims)
            return topi.divide(total, topi.cast(math.prod(x.shape[axis] for axis in axes), "float32"))

        fusable = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        half = self.visit_expr(half)
        return self.builder_.call_te(compute, half, primfunc_name_hint="mean", primfunc_attrs=fusable)

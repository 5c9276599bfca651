"""Lets kernels read half precision and widen it, in place of tensors that were widened to float32 for several readers.

Arithmetic of half precision is between casts. A cast that several operators read would end the kernel of what it reads,
which would write float32; so would the cast before a mean, with which TVM fuses nothing that precedes it.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, map_operands, with_main
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE
from packager.transforms.layout.layouts import ELEMENTWISE

# What TVM fuses with the elementwise functions that make its operands.
READERS = ELEMENTWISE | {"sum"}


def repeat_casts(module: tvm.IRModule) -> tvm.IRModule:
    """Give each reader of a cast from half precision to float32 in ``main`` a cast of its own, where both are fused."""
    flow = Dataflow(module["main"])

    def widened(operand: Any) -> Any:
        """Return the cast that an operand is, if others read it, too; else None."""
        cast = flow.call(operand, "astype")
        several = cast is not None and (len(flow.readers(operand)) > 1 or flow.is_result(operand))
        return cast if several and is_widening(cast) else None

    def changed(binding: Any) -> list[Any]:
        if operator_of(binding.value) not in READERS:
            return [binding]
        own: IdentityMap[Any] = IdentityMap()
        for operand in binding.value.args:
            if isinstance(operand, relax.Var) and operand not in own and widened(operand) is not None:
                own[operand] = type(operand)(operand.name, operand.ty)
        if not len(own):
            return [binding]
        casts = [relax.VarBinding(own[operand], flow.value(operand)) for operand in own]
        value = map_operands(binding.value, lambda operand: own.get(operand, operand))
        return [*casts, relax.VarBinding(binding.var, value)]

    return relax.transform.Normalize()(map_bindings(module, changed))


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


def is_widening(call: Any) -> bool:
    """Whether a call is a cast from half precision to float32."""
    return operator_of(call) == "astype" and str(call.args[0].ty.dtype) in HALVES and str(call.attrs.dtype) == "float32"

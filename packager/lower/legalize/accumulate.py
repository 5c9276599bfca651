"""Accumulate float16 and bfloat16 in float32: results are rounded once, at the end."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.rewrite import PRODUCTS, rebuild_call, with_main

HALVES = ("float16", "bfloat16")
FULL = "float32"


def accumulate_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Let half-precision matmuls and convolutions of ``main`` return float32, followed by a cast."""
    return with_main(module, _Accumulator(module).visit_expr(module["main"]))


@mutator
class _Accumulator(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        dtype = str(getattr(call.ty, "dtype", ""))
        if name not in PRODUCTS or dtype not in HALVES:
            return call
        return relax.op.astype(self.builder_.emit(rebuild_call(call, *call.args, out_dtype=FULL)), dtype)


def legalize_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``softmax``; half precision is computed in float32."""
    axis, dtype = call.attrs.axis, str(call.ty.dtype)

    def compute(x: Any) -> Any:
        if dtype not in HALVES:
            return topi.nn.softmax(x, axis)
        return topi.cast(topi.nn.softmax(topi.cast(x, FULL), axis), dtype)

    return builder.call_te(compute, call.args[0], primfunc_name_hint="softmax")


def legalize_layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``layer_norm``; half precision is computed in float32. TVM has no version for bfloat16."""
    axes, epsilon, dtype = [int(axis) for axis in call.attrs.axes], call.attrs.epsilon, str(call.ty.dtype)

    def compute(*operands: Any) -> Any:
        if dtype not in HALVES:
            return topi.nn.layer_norm(*operands, axes, epsilon)
        return topi.cast(topi.nn.layer_norm(*(topi.cast(x, FULL) for x in operands), axes, epsilon), dtype)

    return builder.call_te(compute, *call.args, primfunc_name_hint="layer_norm")

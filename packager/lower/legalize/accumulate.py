"""Accumulate float16 and bfloat16 in float32: results are rounded once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.bundle.dtypes import HALVES
from packager.graph.rewrite import PRODUCTS, rebuild_call, with_main

FULL = "float32"
# Operators of one operand that sum many of its elements.
REDUCTIONS = frozenset(
    {
        "relax.cumsum",
        "relax.cumprod",
        "relax.sum",
        "relax.mean",
        "relax.variance",
        "relax.std",
        "relax.prod",
        "relax.nn.log_softmax",
    }
    | {f"relax.nn.{kind}_pool{axes}d" for kind in ("avg", "adaptive_avg") for axes in (1, 2, 3)}
)


def accumulate_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Let half-precision matmuls and convolutions of ``main`` return float32, followed by a cast."""
    return with_main(module, _Accumulator(module).visit_expr(module["main"]))


def reduce_in_float32(module: tvm.IRModule) -> tvm.IRModule:
    """Let half-precision reductions of ``main`` read float32. On GPUs kernels are widened when they are scheduled."""
    return with_main(module, _Reducer(module).visit_expr(module["main"]))


@mutator
class _Reducer(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        dtype = str(getattr(call.ty, "dtype", ""))
        if getattr(call.op, "name", "") not in REDUCTIONS or dtype not in HALVES:
            return call
        wide = self.builder_.emit(relax.op.astype(call.args[0], FULL))
        return relax.op.astype(self.builder_.emit(relax.Call(call.op, [wide], call.attrs)), dtype)


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
    axis = call.attrs.axis
    compute = _in_float32(call, lambda x: topi.nn.softmax(x, axis))
    return builder.call_te(compute, *call.args, primfunc_name_hint="softmax")


def legalize_layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``layer_norm``; half precision is computed in float32. TVM has no version for bfloat16."""
    return builder.call_te(layer_norm_of(call), *call.args, primfunc_name_hint="layer_norm")


def layer_norm_of(call: relax.Call) -> Callable[..., te.Tensor]:
    """Return what a call of ``layer_norm`` computes, of its operands as tensors."""
    axes, epsilon = [int(axis) for axis in call.attrs.axes], call.attrs.epsilon
    return _in_float32(call, lambda *operands: topi.nn.layer_norm(*operands, axes, epsilon))


def _in_float32(call: relax.Call, compute: Callable[..., Any]) -> Callable[..., te.Tensor]:
    dtype = str(call.ty.dtype)

    def cast(*operands: Any) -> Any:
        if dtype not in HALVES:
            return compute(*operands)
        return topi.cast(compute(*(topi.cast(operand, FULL) for operand in operands)), dtype)

    return cast

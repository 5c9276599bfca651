"""Calls of kernels that only give a tensor another shape become ``relax.reshape``, which costs nothing.

TVM's pass for it fails on a whole module where it cannot follow the indices of one kernel, as those of a transpose with
an extent such as ``past + 1``. Then the same is done kernel by kernel, and such kernels stay calls.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.analysis import has_reshape_pattern
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.frontends.names import with_main


def rewrite_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the calls in the dataflow blocks of ``main``."""
    try:
        return relax.transform.RewriteDataflowReshape()(module)
    except tvm.error.InternalError:
        return with_main(module, _Reshapes(module).visit_expr(module["main"]))


@mutator
class _Reshapes(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.module = module

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir" or not isinstance(call.ty, relax.TensorType):
            return call
        operands = list(call.args[1].fields)
        if len(operands) > 1 and any(isinstance(operand.ty, relax.TensorType) for operand in operands[1:]):
            return call
        kernel = self.module[call.args[0]]
        same_type = isinstance(operands[0].ty, relax.TensorType) and operands[0].ty.dtype == call.ty.dtype
        return relax.op.reshape(operands[0], call.ty.shape) if same_type and _only_reshapes(kernel) else call


def _only_reshapes(kernel: Any) -> bool:
    try:
        return isinstance(kernel, tirx.PrimFunc) and bool(has_reshape_pattern(kernel))
    except tvm.error.InternalError:  # its indices cannot be followed
        return False

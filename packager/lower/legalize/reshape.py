"""Calls of kernels that only give a tensor another shape become ``relax.reshape``, which costs nothing.

TVM's pass for it fails on a whole module where it cannot follow the indices of one kernel, as those of a transpose with
an extent such as ``past + 1``. Then the same is done kernel by kernel, and such kernels stay calls.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.analysis import has_reshape_pattern
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from packager.graph.rewrite import with_main


def legalize_reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Leave a reshape as it is where nothing but a condition of the run says that there are as many elements as before.

    As a kernel it would not be known for a reshape, and its indices are a chain of quotients that LLVM is busy with for
    minutes.
    """
    before, after = call.args[0].ty.shape, call.ty.shape
    if isinstance(before, relax.ShapeExpr) and isinstance(after, relax.ShapeExpr):
        counts = [reduce(operator.mul, shape.values, tirx.IntImm("int64", 1)) for shape in (before, after)]
        if not Analyzer().can_prove_equal(*counts):
            return call
    return tvm.ir.Op.get("relax.reshape").get_attr("FLegalize")(builder, call)


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

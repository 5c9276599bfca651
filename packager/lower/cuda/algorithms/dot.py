"""Writes products with one column as sums of rows for GPUs, which fuse with what is computed of each sum alone.

TVM would fuse one with whatever reads it: each element of a larger result would compute the sum again.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import Dataflow, extents_of, operator_of, same, shape_of
from packager.graph.rewrite import with_main
from packager.ir.pattern_kinds import OPAQUE, OUT_ELEMENTWISE_FUSABLE
from packager.transforms.layout.layouts import ELEMENTWISE


def sum_products(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite products of ``main`` with a matrix [K, 1] of a known K."""
    summer = _Summer(module)
    main = summer.visit_expr(module["main"])
    return with_main(summer.builder_.get(), main)  # with the PrimFuncs that it has added


def _is_broadcast(flow: Dataflow, variable: Any) -> bool:
    """Whether what is computed of a variable element by element is read by something with more elements."""
    shape = extents_of(variable)
    readers = [reader for reader in flow.readers(variable) if operator_of(flow.value(reader)) in ELEMENTWISE]
    return any(not same(extents_of(reader), shape) or _is_broadcast(flow, reader) for reader in readers)


@mutator
class _Summer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.flow = Dataflow(module["main"])
        self.bound: Any = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.bound = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.matmul":
            return call
        matrix, rows = shape_of(call.args[1]) or (), extents_of(call.args[0]) or ()
        if len(matrix) != 2 or matrix[1] != 1 or not isinstance(matrix[0], int) or len(rows) < 2:
            return call
        dtype = str(call.ty.dtype)

        def dot(x: te.Tensor, vector: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, matrix[0]), name="k")

            def element(*at: Any) -> Any:
                return te.sum(x(*at[:-1], k).astype(dtype) * vector(k).astype(dtype), axis=k)

            return te.compute((*x.shape[:-1], 1), element, name="dot")

        vector = self.builder_.emit(relax.op.reshape(call.args[1], [matrix[0]]))
        fusable = {"op_pattern": OPAQUE if _is_broadcast(self.flow, self.bound) else OUT_ELEMENTWISE_FUSABLE}
        return self.builder_.call_te(dot, call.args[0], vector, primfunc_name_hint="matmul", primfunc_attrs=fusable)

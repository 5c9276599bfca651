"""Replace calls of kernels that only reshape by ``relax.reshape``, which costs nothing at run time.

TVM's pass fails for the whole module if it cannot analyze the indices of one kernel, such as a transpose with an extent
``past + 1``. Then kernels are tested one by one, and those stay calls.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import tvm
from tvm import relax, s_tir, te, tirx
from tvm.relax.analysis import has_reshape_pattern
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from packager.graph.dataflow import bindings_of, called_function, extents_of, operator_of
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of, with_main
from packager.ir.pattern_kinds import INJECTIVE
from packager.lower.blocks import blocks, inline, is_movement, schedule_of


def legalize_reshape(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Keep a reshape whose element counts are equal only by a run-time condition, or with extents such as ``h // 4``.

    As a kernel it would not be recognized as a reshape, and LLVM spends minutes on its chains of divisions.
    """
    before, after = extents_of(call.args[0]), extents_of(call)
    if before is not None and after is not None:
        if not all(isinstance(extent, tirx.IntImm | tirx.Var) for extent in (*before, *after)):
            return call
        if not _are_as_many(call.args[0], call):
            return call
    if before and after and _is_of_images(before, after):
        return _reshape_images(builder, call)
    return tvm.ir.Op.get("relax.reshape").get_attr("FLegalize")(builder, call)


def _is_of_images(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether both shapes begin with the same symbolic extent, and all others are known."""
    known = all(isinstance(extent, tirx.IntImm) for extent in (*before[1:], *after[1:]))
    return known and isinstance(before[0], tirx.Var) and before[0].same_as(after[0])


def _reshape_images(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Reshape the images of a batch of any size, each by itself: TVM does not know its own indices as injective."""
    before, after = extents_of(call.args[0]) or (), extents_of(call) or ()

    def compute(data: te.Tensor) -> te.Tensor:
        def element(image: Any, *at: Any) -> Any:
            flat = reduce(lambda position, pair: position * pair[1] + pair[0], zip(at, after[1:], strict=True), 0)
            inner: list[Any] = []
            for extent in reversed(before[1:]):
                inner, flat = [tirx.floormod(flat, extent), *inner], tirx.floordiv(flat, extent)
            return data(image, *inner)

        return te.compute((data.shape[0], *after[1:]), element, name="reshape")

    fusable = {"op_pattern": INJECTIVE}
    return builder.call_te(compute, call.args[0], primfunc_name_hint="reshape", primfunc_attrs=fusable)


def rewrite_reshapes(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the calls of ``main``. TVM leaves those whose results are outputs, which planning writes in place."""
    try:
        module, failed = relax.transform.RewriteDataflowReshape()(module), False
    except tvm.error.InternalError:
        failed = True
    rest = [
        binding.value
        for binding in bindings_of(module["main"])
        if failed or not isinstance(binding.var, relax.DataflowVar) or _may_be_several(module, binding.value)
    ]
    return with_main(module, _Reshapes(module, rest).visit_expr(module["main"]))


@mutator
class _Reshapes(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, calls: Sequence[relax.Expr]) -> None:
        super().__init__(module)
        self.module, self.calls = module, IdentitySet(calls)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        is_wanted, call = call in self.calls, self.visit_expr_post_order(call)
        if (
            not is_wanted
            or getattr(call.op, "name", "") != "relax.call_tir"
            or not isinstance(call.ty, relax.TensorType)
        ):
            return call
        operands = list(call.args[1].fields)
        if len(operands) > 1 and any(isinstance(operand.ty, relax.TensorType) for operand in operands[1:]):
            return call
        kernel = self.module[call.args[0]]
        same_type = isinstance(operands[0].ty, relax.TensorType) and operands[0].ty.dtype == call.ty.dtype
        if not same_type or not _are_as_many(operands[0], call) or not _only_reshapes(kernel):
            return call
        return relax.op.reshape(operands[0], call.ty.shape)


def _may_be_several(module: tvm.IRModule, value: Any) -> bool:
    """Whether a kernel may be several reshapes, which TVM has fused and then does not recognize."""
    callee = called_function(value)
    if callee is None or operator_of(value) != "call_tir" or len(module[callee].params) != 2:
        return False
    _, *inner = nodes_of(module[callee].body, s_tir.SBlock)
    return len(inner) > 1


def _are_as_many(before: Any, after: Any) -> bool:
    """Whether two tensors have as many elements: those of a slice ``x[0]`` lie at the same places, too."""
    given, wanted = extents_of(before), extents_of(after)
    if given is None or wanted is None:
        return False
    counts = (reduce(operator.mul, extents, tirx.IntImm("int64", 1)) for extents in (given, wanted))
    return bool(Analyzer().can_prove_equal(*counts))


def _only_reshapes(kernel: Any) -> bool:
    try:
        if not isinstance(kernel, tirx.PrimFunc):
            return False
        sch = schedule_of(kernel)
        if len(blocks(sch)) > 1 and all(is_movement(sch, block) for block in blocks(sch)):
            inline(sch, lambda _sch, _block: True)
        return bool(has_reshape_pattern(sch.mod["main"]))
    except tvm.error.InternalError:  # the indices cannot be analyzed
        return False

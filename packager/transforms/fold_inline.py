"""Compute what depends on nothing but the small constants that stand in the graph, and on shapes that are known.

Frontends compute indices and axes by operators (``Gather`` with an index below zero): these must not become work at
run time, nor parts of a model that a backend is offered.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from packager.bundle.arrays import Array
from packager.graph.evaluate import evaluate_call
from packager.graph.identity import IdentityMap
from packager.graph.lift_constants import INLINE_INTEGERS, stays_inline
from packager.graph.rewrite import with_main


def fold_inline(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with such values of ``main`` in place of the operators that compute them.

    It leaves bindings of constants and of variables, which ``CanonicalizeBindings`` removes. What would not stay in the
    graph as a constant, because it is too large, is left as it is.
    """
    main = module["main"]
    known: IdentityMap[Array] = IdentityMap()
    blocks = [type(block)([_folded(binding, known) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    return with_main(module, relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs))


def _folded(binding: Any, known: IdentityMap[Array]) -> Any:
    call = binding.value
    if not isinstance(binding, relax.VarBinding) or not isinstance(call, relax.Call):
        return binding
    array = _value(call, known)
    if array is None:
        branch = _branch(call, known)
        return binding if branch is None else relax.VarBinding(binding.var, branch)
    known[binding.var] = array
    if not isinstance(call.ty, relax.TensorType) or not stays_inline(array):
        return binding  # of a shape: what reads it may need it as one
    return relax.VarBinding(binding.var, relax.const(array, array.dtype.name))


def _branch(call: relax.Call, known: IdentityMap[Array]) -> relax.Expr | None:
    """Return the operand that a ``where`` with a known condition gives, if it gives one of them as it is."""
    if getattr(call.op, "name", "") != "relax.where":
        return None
    condition = known.get(call.args[0])
    if condition is None or len(np.unique(condition)) != 1:
        return None
    branch = call.args[1 if condition.all() else 2]
    return branch if structural_equal(branch.ty, call.ty) else None


def _value(call: relax.Call, known: IdentityMap[Array]) -> Array | None:
    """Return what a call gives if that is known, and small."""
    if isinstance(call.ty, relax.ShapeType):
        extents = call.ty.values or ()
        is_static = len(extents) > 0 and all(isinstance(extent, tirx.IntImm) for extent in extents)
        by_shape = getattr(call.op, "name", "") == "relax.shape_of" and is_static
        return np.array([int(extent) for extent in extents], np.int64) if by_shape else None
    extents = call.ty.shape.values if isinstance(getattr(call.ty, "shape", None), relax.ShapeExpr) else None
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    if math.prod(int(extent) for extent in extents) > INLINE_INTEGERS:
        return None
    return evaluate_call(call, known)

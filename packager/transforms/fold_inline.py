"""Folds operators on small inline constants and static shapes.

Frontends emit operators that compute indices and axes (``Gather`` with a negative index): these must not run at run
time, nor be offered to backends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from packager.bundle.arrays import Array
from packager.graph.dataflow import operator_of, static_shape_of
from packager.graph.evaluate import evaluate_call
from packager.graph.identity import IdentityMap
from packager.graph.lift_constants import INLINE_INTEGERS, stays_inline
from packager.graph.rewrite import map_bindings


def fold_inline(module: tvm.IRModule) -> tvm.IRModule:
    """Replace such operators in ``main`` by their values.

    Leaves bindings of constants and variables, which ``CanonicalizeBindings`` removes. Results too large for inline
    constants are not folded.
    """
    known: IdentityMap[Array] = IdentityMap()
    return map_bindings(module, lambda binding: [_folded(binding, known)])


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
        return binding  # a shape: its readers may require a shape expression
    return relax.VarBinding(binding.var, relax.const(array, array.dtype.name))


def _branch(call: relax.Call, known: IdentityMap[Array]) -> relax.Expr | None:
    """Return the operand that a ``where`` with a constant condition selects, if it is unchanged."""
    if operator_of(call) != "where":
        return None
    condition = known.get(call.args[0])
    if condition is None or len(np.unique(condition)) != 1:
        return None
    branch = call.args[1 if condition.all() else 2]
    return branch if structural_equal(branch.ty, call.ty) else None


def _value(call: relax.Call, known: IdentityMap[Array]) -> Array | None:
    """Return the value of a call if it is known and small."""
    if isinstance(call.ty, relax.ShapeType):
        extents = call.ty.values or ()
        is_static = len(extents) > 0 and all(isinstance(extent, tirx.IntImm) for extent in extents)
        by_shape = operator_of(call) == "shape_of" and is_static
        return np.array([int(extent) for extent in extents], np.int64) if by_shape else None
    shape = static_shape_of(call)
    return None if shape is None or math.prod(shape) > INLINE_INTEGERS else evaluate_call(call, known)

"""Drops no-ops: casts to the same type, broadcasts to the same shape, views of views, slices of slices, reductions of
one element, permutations and their inverses, pads by nothing, dropout, maxima that are subtracted before a softmax.

Frontends emit them liberally. They would break pattern matching (a matmul and its bias) and CSE.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from packager.graph.dataflow import axes_of, operator_of, slice_of, static_shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings

# The identity on one element. TVM's GPU schedules may abort on such reductions.
REDUCTIONS = frozenset(("sum", "mean", "max", "min", "prod"))
SAME = frozenset(("astype", "broadcast_to", "reshape"))
# A cast to float32 and back is exact.
EXACT = {("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("int32", "int64")}


def drop_no_ops(module: tvm.IRModule) -> tvm.IRModule:
    """Drop no-ops in ``main``.

    Leaves bindings of variables, which ``CanonicalizeBindings`` removes, and dead code.
    """
    made: IdentityMap[Any] = IdentityMap()

    def reduce(binding: Any) -> list[Any]:
        kept = _reduced(binding, made)
        made[kept.var] = kept.value
        return [kept]

    return map_bindings(module, reduce)


def _reduced(binding: Any, made: IdentityMap[Any]) -> Any:
    call = binding.value
    if not isinstance(binding, relax.VarBinding):
        return binding
    if isinstance(call, relax.TupleGetItem) and int(call.index) == 0 and isinstance(call.tuple_value, relax.Var):
        made_by: Any = made.get(call.tuple_value)
        return relax.VarBinding(binding.var, made_by.args[0]) if operator_of(made_by) == "nn.dropout" else binding
    if operator_of(call) in REDUCTIONS and structural_equal(call.args[0].ty, call.ty):
        return relax.VarBinding(binding.var, call.args[0])
    if operator_of(call) == "nn.pad" and not any(map(int, call.attrs.pad_width)):
        return relax.VarBinding(binding.var, call.args[0])
    if operator_of(call) == "permute_dims":
        inner: Any = made.get(call.args[0])
        is_undone = axes_of(call) == _inverse(axes_of(inner) or ())
        return relax.VarBinding(binding.var, inner.args[0]) if is_undone else binding
    if operator_of(call) == "strided_slice" and (whole := _slice_of_slice(call, made)) is not None:
        return relax.VarBinding(binding.var, whole)
    if operator_of(call) == "nn.softmax" and (unshifted := _without_maximum(call, made)) is not None:
        return relax.VarBinding(binding.var, relax.Call(call.op, [unshifted], call.attrs, call.ty_args))
    if operator_of(call) not in SAME:
        return binding
    source = call.args[0]
    while (inner := _passed_through(call, source, made)) is not None:
        source = inner
    if structural_equal(source.ty, call.ty):
        return relax.VarBinding(binding.var, source)
    if source.same_as(call.args[0]):
        return binding
    return relax.VarBinding(binding.var, relax.Call(call.op, [source, *call.args[1:]], call.attrs, call.ty_args))


def _without_maximum(softmax: Any, made: IdentityMap[Any]) -> Any:
    """Return x of softmax(x - max(x)), which subtracts the maximum itself; None for other operands."""
    difference: Any = made.get(softmax.args[0])
    if operator_of(difference) != "subtract":
        return None
    source, shift = difference.args
    most: Any = made.get(shift)
    if operator_of(most) != "max" or not most.args[0].same_as(source) or not most.attrs.keepdims:
        return None
    rank = source.ty.ndim
    axes = [int(axis) % rank for axis in most.attrs.axis or ()]
    return source if axes == [int(softmax.attrs.axis) % rank] else None


def _passed_through(call: Any, source: Any, made: IdentityMap[Any]) -> Any:
    """Return the source of an operand that is a view or exact cast, if ``call`` can read the source instead; else
    None."""
    inner = made.get(source) if isinstance(source, relax.Var) else None
    if isinstance(inner, relax.Var):
        return inner
    if inner is None:
        return None
    if operator_of(inner) == operator_of(call) == "reshape":
        return inner.args[0]
    if operator_of(inner) == operator_of(call) == "astype":
        types = str(inner.args[0].ty.dtype), str(source.ty.dtype)
        return inner.args[0] if types in EXACT else None
    return None


def _slice_of_slice(call: Any, made: IdentityMap[Any]) -> Any:
    """Return one slice of static places for that of another one; None if it is none."""
    inner: Any = made.get(call.args[0]) if isinstance(call.args[0], relax.Var) else None
    parts = [slice_of(each) for each in (inner, call)] if operator_of(inner) == "strided_slice" else [None]
    extents = None if inner is None or None in parts else static_shape_of(inner.args[0])
    if extents is None:
        return None
    places = [range(extent) for extent in extents]
    for slices in parts:
        places = [each[part] for each, part in zip(places, slices or (), strict=True)]
    begins, ends = [each.start for each in places], [each.stop for each in places]
    return relax.BlockBuilder().normalize(relax.op.strided_slice(inner.args[0], [*range(len(places))], begins, ends))


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))

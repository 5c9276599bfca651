"""Clamps data-dependent indices to their tensors.

Indices loaded from tensors (Gather, Scatter, embeddings) may be out of bounds: bad data may give wrong results, but
must never access memory outside a tensor.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of

MOST = 2**31 - 1  # of an int32


def clamp_indices(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Clamp every index that depends on loaded values to ``[0, extent - 1]``."""
    known = _known_variables(primfunc.body)

    def clamp_load(load: Any) -> Any:
        indices = _clamped(load.indices, load.source, known)
        return tirx.BufferLoad(load.source, indices) if indices else load

    def clamp_store(store: Any) -> Any:
        indices = _clamped(store.indices, store.buffer, known)
        return st.BufferStore(store.buffer, store.value, indices) if indices else store

    def guard(select: Any) -> Any:
        """Let a branch with such an index be evaluated only if it is taken.

        TVM simplifies it by the condition: under ``0 <= i``, ``x[max(i, 0)]`` becomes ``x[i]``.
        """
        loads = [load for part in (select.true_value, select.false_value) for load in nodes_of(part, tvm.ir.TensorLoad)]
        dependent = any(_is_dependent(index, known) for load in loads for index in load.indices)
        values = select.condition, select.true_value, select.false_value
        return tirx.if_then_else(*values) if dependent else select

    rules = [(tvm.ir.TensorLoad, clamp_load), (st.BufferStore, clamp_store), (tirx.Select, guard)]
    body = structural_map(primfunc.body, rules)
    return primfunc.with_body(body)


@tvm.transform.module_pass(opt_level=0, name="ClampFoldedIndices")  # type: ignore[untyped-decorator]
def clamp_folded_indices(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Clamp indices in PrimFuncs that ``main`` calls with constants only: FoldConstant runs them at build time."""
    clamped = {}
    for call in (binding.value for binding in bindings_of(module["main"])):
        if operator_of(call) == "call_tir":
            fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
            if all(isinstance(field, GenericConst) for field in fields):
                clamped[call.args[0]] = clamp_indices(module[call.args[0]])
    return tvm.IRModule({**module.functions, **clamped}, attrs=module.attrs)


def _known_variables(body: Any) -> IdentitySet:
    """Return the variables of threads that are set once, where they begin, to what no data decide.

    They stand for an expression. What is set later may not be set at all, as in a branch that is not taken.
    """
    stored: IdentityMap[int] = IdentityMap()
    for store in nodes_of(body, st.BufferStore):
        stored[store.buffer] = stored.get(store.buffer, 0) + 1
    known = IdentitySet()
    for sequence in nodes_of(body, st.SeqStmt):
        for begun, store in itertools.pairwise(sequence.seq):
            is_set = isinstance(begun, st.AllocBuffer) and isinstance(store, st.BufferStore)
            if not is_set or not begun.buffer.same_as(store.buffer) or stored[store.buffer] > 1:
                continue
            is_variable = store.buffer.scope() == "local" and math.prod(map(int, store.buffer.shape)) == 1
            if is_variable and not _is_dependent(store.value, known):
                known.add(store.buffer)
    return known


def _is_dependent(index: Any, known: IdentitySet) -> bool:
    return any(load.source not in known for load in nodes_of(index, tvm.ir.TensorLoad))


def _clamped(indices: Any, buffer: Any, known: IdentitySet) -> list[Any] | None:
    """Return the indices with data-dependent ones clamped, or None if there are none."""
    depends = [_is_dependent(index, known) for index in indices]
    if not any(depends):
        return None
    return [
        _inside(index, extent) if dependent else index
        for index, dependent, extent in zip(indices, depends, buffer.shape, strict=True)
    ]


def _inside(index: Any, extent: Any) -> Any:
    """Return an index within an extent; one that was an int32 is compared as such, which takes GPUs half as long."""
    if isinstance(index, tirx.Cast) and str(index.value.ty) == "int32" and isinstance(extent, tirx.IntImm):
        last = tirx.const(min(int(extent) - 1, MOST), "int32")
        return tirx.Cast(index.ty, tirx.max(tirx.min(index.value, last), tirx.const(0, "int32")))
    return tirx.max(tirx.min(index, tirx.Cast(index.ty, extent) - 1), tirx.const(0, str(index.ty)))


def legalize_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``take`` with numpy's semantics of negative indices."""
    mode = "wrap" if call.attrs.mode == "fast" else call.attrs.mode
    return builder.call_te(tvm.topi.take, call.args[0], call.args[1], call.attrs.axis, mode=mode)

"""Rewrites kernels to update an operand in place, where that is safe.

Two patterns are recognized. *Copy and update* (scatter, slice assignment) copies the operand to the result and then
changes some elements: in place the copy is dropped, and the cost is that of the update. An *elementwise* kernel
computes each element of the result from the same element of the operand, which it reads first. Everything else is
refused. Kernels assume that parameters do not alias, so operand and result become one parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx import stmt as st
from tvm_ffi import structural_equal, structural_map

from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Kernel

_SPATIAL = 0  # tirx.IterVar.DataPar
_FREE_LOOPS = (st.ForKind.PARALLEL, st.ForKind.THREAD_BINDING)


@dataclass(frozen=True)
class InPlace:
    """A call rewritten to work in place: ``kernel`` has one parameter for operand and result.

    ``kernel`` is None if nothing is left to do. ``written`` is the maximum number of bytes stored, if that may be less
    than the size of the result.
    """

    kernel: Kernel | None
    written: int | None = None


def in_place(kernel: Kernel, source: int, target: int) -> InPlace | None:
    """Rewrite ``kernel`` to read parameter ``source`` from the memory of parameter ``target``, which it writes.

    Returns None unless this is provably equivalent.
    """
    old, new = kernel.primfunc.params[source], kernel.primfunc.params[target]
    if str(old.dtype) != str(new.dtype) or not structural_equal(old.shape, new.shape):
        return None
    if kernel.parameters[source].written or not kernel.parameters[target].written:
        return None
    body = kernel.primfunc.body
    copies = _leading_copies(body, old, new)
    if copies is None:
        if not _is_elementwise(body, old, new):
            return None
        return InPlace(_merge_parameters(kernel, source, target, IdentitySet()))
    if not any(nodes_of(member, st.BufferStore) for member in _statements(body) if member not in copies):
        return InPlace(None)
    merged = _merge_parameters(kernel, source, target, copies)
    return InPlace(merged, _stored_elements(merged.primfunc.body, new) * tvm.runtime.DataType(new.dtype).itemsize)


def _merge_parameters(kernel: Kernel, source: int, target: int, copies: IdentitySet) -> Kernel:
    """Drop parameter ``source`` and the statements that copy it to ``target``."""
    old, new = kernel.primfunc.params[source], kernel.primfunc.params[target]

    def without_copies(statement: Any) -> Any:
        kept = [member for member in statement.seq if member not in copies]
        if len(kept) == len(statement.seq):
            return statement
        return kept[0] if len(kept) == 1 else st.SeqStmt(kept)

    body = structural_map(kernel.primfunc.body, (st.SeqStmt, without_copies)) if copies else kernel.primfunc.body
    body = structural_map(body, (tirx.Var, lambda variable: new if variable.same_as(old) else variable))
    parameters = [p for index, p in enumerate(kernel.primfunc.params) if index != source]
    function = tirx.PrimFunc(parameters, body).with_attrs(dict(kernel.primfunc.attrs or {}))
    return replace(
        kernel,
        symbol=f"{kernel.symbol}_in_place{source}",
        primfunc=function,
        parameters=tuple(p for index, p in enumerate(kernel.parameters) if index != source),
    )


def _leading_copies(body: Any, old: Any, new: Any) -> IdentitySet | None:
    """Return the leading statements of a nest that copy ``old`` to ``new`` element by element.

    Returns None if ``old`` is read by anything else, or after ``new`` was written: then the two must not alias.
    """
    copies = IdentitySet()
    changed = False
    for member in _statements(body):
        if _loads(member, old):
            if changed or not _is_copy(member, old, new):
                return None
            copies.add(member)
        elif any(variable.same_as(new) for variable in nodes_of(member, tirx.Var)):
            changed = True
    return copies or None


def _statements(body: Any) -> list[Any]:
    """Flatten a nest to its statements in order, through blocks and parallelizable loops.

    Iterations of such loops may run in any order, so all copies may be assumed to come first.
    """
    while True:
        match body:
            case s_tir.SBlockRealize() if body.block.init is None:
                body = body.block.body
            case st.AttrStmt():
                body = body.body
            case st.For() if int(body.kind) in _FREE_LOOPS or _size(body.extent) == 1:
                body = body.body
            case st.SeqStmt():
                return list(body.seq)
            case _:
                return [body]


def _is_copy(statement: Any, old: Any, new: Any) -> bool:
    """Whether a statement only stores elements of ``old`` at the same indices of ``new``."""
    stores = nodes_of(statement, st.BufferStore)
    own = [
        store
        for store in stores
        if store.buffer.same_as(new)
        and isinstance(store.value, tvm.ir.TensorLoad)
        and store.value.source.same_as(old)
        and structural_equal(store.value.indices, store.indices)
    ]
    return len(own) == len(stores) == len(_loads(statement, old))


def _is_elementwise(body: Any, old: Any, new: Any) -> bool:
    """Whether each element of ``new`` is stored once, and reads only the same element of ``old``."""
    stores = [found for found in _placed_stores(body, ()) if found[0].buffer.same_as(new)]
    if len(stores) != 1 or sum(store.buffer.same_as(new) for store in nodes_of(body, st.BufferStore)) != 1:
        return False
    store, around = stores[0]
    if not around or not isinstance(around[-1], s_tir.SBlockRealize):
        return False
    loads = _loads(store.value, old)
    if len(_loads(body, old)) != len(loads) or _loads(body, new):
        return False
    return all(structural_equal(load.indices, store.indices) for load in loads) and _runs_once(store, around)


def _runs_once(store: Any, around: tuple[Any, ...]) -> bool:
    """Whether the innermost block around a store runs it once per element."""
    realize = around[-1]
    block = realize.block
    axes = [axis for axis in block.iter_vars if _size(axis.dom.extent) != 1]
    if block.init is not None or any(int(axis.iter_type) != _SPATIAL for axis in block.iter_vars):
        return False
    used = [index for index in store.indices if isinstance(index, tirx.Var)]
    if any(not isinstance(index, tirx.Var | tirx.IntImm) for index in store.indices):
        return False
    if any(sum(index.same_as(axis.var) for index in used) != 1 for axis in axes):
        return False
    loops = [loop for loop in around if isinstance(loop, st.For) and _size(loop.extent) != 1]
    if any(isinstance(outer, s_tir.SBlockRealize) and outer.block.iter_vars for outer in around[:-1]):
        return False
    bound = IdentitySet(variable for value in realize.iter_values for variable in nodes_of(value, tirx.Var))
    if any(loop.loop_var not in bound for loop in loops):
        return False
    if isinstance(realize.predicate, tirx.IntImm):  # no predicate: the loops cover exactly the elements
        iterations, elements = [_size(loop.extent) for loop in loops], [_size(axis.dom.extent) for axis in axes]
        return None not in (*iterations, *elements) and math.prod(filter(None, iterations)) == math.prod(
            filter(None, elements)
        )
    return True


def _placed_stores(node: Any, around: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each store with its enclosing loops and blocks, outermost first."""
    match node:
        case st.For():
            yield from _placed_stores(node.body, (*around, node))
        case st.AttrStmt():
            yield from _placed_stores(node.body, around)
        case s_tir.SBlockRealize():
            yield from _placed_stores(node.block.body, (*around, node))
        case st.SeqStmt():
            for member in node.seq:
                yield from _placed_stores(member, around)
        case st.BufferStore():
            yield node, around


def _stored_elements(body: Any, buffer: Any) -> int:
    """Return an upper bound on the elements stored: the iterations around each store, capped by the buffer's size."""
    every = math.prod(_size(extent) or 1 for extent in buffer.shape)
    total = 0
    for store, around in _placed_stores(body, ()):
        if store.buffer.same_as(buffer):
            extents = [_size(loop.extent) for loop in around if isinstance(loop, st.For)]
            total += every if None in extents else math.prod(filter(None, extents))
    return min(total, every)


def _size(extent: Any) -> int | None:
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def _loads(node: Any, buffer: Any) -> list[Any]:
    return [load for load in nodes_of(node, tvm.ir.TensorLoad) if load.source.same_as(buffer)]

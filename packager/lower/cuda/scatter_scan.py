"""Schedules opaque blocks: scatter and scan, which TVM writes as plain loops without block axes.

An opaque block runs on one thread block. Parallel loops are distributed over its threads, with a barrier after each;
serial loops run in all threads alike, and statements outside of parallel loops in thread 0 only.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import PrimType, TensorLoad
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st
from tvm_ffi import structural_equal, structural_map

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, schedule_of
from packager.lower.cuda.elementwise import schedule_elementwise

THREADS = 1024
_THREAD_INDEX = 1  # tirx.IterVar


def schedule_scatter_scan(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a PrimFunc with an opaque block, and its other blocks, to threads. Raises ScheduleError without one."""
    sch = schedule_of(_with_root(primfunc))
    opaque = [block for block in blocks(sch) if not sch.get(block).iter_vars and not sch.get_loops(block)]
    if not opaque:
        raise ScheduleError("no block is opaque")
    names = {sch.get(block).name_hint for block in opaque}
    for block in blocks(sch):
        if sch.get(block).name_hint not in names:
            with contextlib.suppress(ScheduleError):  # opaque consumers do not declare what they read
                sch.compute_inline(block)
    for block in blocks(sch):
        if sch.get(block).name_hint not in names:
            schedule_elementwise(sch, block)

    def bind(realize: Any) -> Any:
        return _bound(realize) if realize.block.name_hint in names else realize

    function = sch.mod["main"]
    return function.with_body(structural_map(function.body, (s_tir.SBlockRealize, bind)))


def _with_root(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Wrap an opaque block that is the whole body in a root block."""
    block = primfunc.body.block
    if block.name_hint == "root":
        return primfunc
    root = s_tir.SBlock([], [], [], "root", primfunc.body)
    return primfunc.with_body(s_tir.SBlockRealize([], True, root))


def _bound(realize: Any) -> Any:
    thread = tirx.Var("thread", "int64")
    block = realize.block
    body = _spread(block.body, thread)
    bound = s_tir.SBlock([], block.reads, block.writes, block.name_hint, body, alloc_buffers=block.alloc_buffers)
    axis = tirx.IterVar(None, tirx.Var("threadIdx.x", "int64"), _THREAD_INDEX, "threadIdx.x")
    zero, extent = tirx.const(0, "int64"), tirx.const(THREADS, "int64")
    inner = s_tir.SBlockRealize([], True, bound)
    return st.For(thread, zero, extent, st.ForKind.THREAD_BINDING, inner, thread_binding=axis)


def _spread(statement: Any, thread: Any) -> Any:
    match statement:
        case st.AttrStmt():
            return _spread(statement.body, thread)
        case st.SeqStmt():
            return st.SeqStmt([_spread(member, thread) for member in statement.seq])
        case st.For() if int(statement.kind) == st.ForKind.PARALLEL or _is_copy(statement):
            return st.SeqStmt([_distributed(statement, thread), _barrier()])
        case st.For() if _has_parallel(statement):
            body = _spread(statement.body, thread)
            return st.For(statement.loop_var, statement.min, statement.extent, st.ForKind.SERIAL, body)
    first = tirx.EQ(thread, tirx.const(0, "int64"))
    return st.SeqStmt([st.IfThenElse(first, statement, None), _barrier()])


def _distributed(loop: Any, thread: Any) -> Any:
    """Return the loop with iteration i assigned to thread i modulo the number of threads."""
    kind = str(loop.loop_var.ty)
    step = tirx.Var("step", kind)
    position = step * THREADS + tirx.Cast(PrimType(kind), thread)
    body = structural_map(loop.body, (tirx.Var, lambda var: loop.min + position if var.same_as(loop.loop_var) else var))
    steps = tirx.floordiv(loop.extent + (THREADS - 1), tirx.const(THREADS, kind))
    guarded = st.IfThenElse(position < loop.extent, body, None)
    return st.For(step, tirx.const(0, kind), steps, st.ForKind.SERIAL, guarded)


def _is_copy(loop: Any) -> bool:
    """Tell whether a loop only copies elements of a tensor to the same indices of another."""
    stores = nodes_of(loop.body, st.BufferStore)
    value = stores[0].value if len(stores) == 1 and stores[0].same_as(loop.body) else None
    return (
        isinstance(value, TensorLoad)
        and not value.source.same_as(stores[0].buffer)
        and bool(structural_equal(value.indices, stores[0].indices))
    )


def _has_parallel(loop: Any) -> bool:
    return any(int(inner.kind) == st.ForKind.PARALLEL for inner in nodes_of(loop.body, st.For))


def _barrier() -> Any:
    return st.Evaluate(tirx.op.tvm_storage_sync("shared"))

"""Schedules opaque blocks: scatter, scan and what else is written as plain loops without block axes.

A block that is one parallel loop is distributed over the threads of a grid; if there are parallel loops in it, each
iteration has a thread block of its own. Any other block runs on one thread block. In a thread block parallel loops are
distributed over the threads, with a barrier after each; other loops and branches run in all threads alike, and
statements outside of parallel loops in thread 0 only.
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
from packager.lower.cuda.thread_loops import GRID_THREADS, block_loop, thread_loop

THREADS, WARP = 1024, 32


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
    body = realize.block.body
    while isinstance(body, st.AttrStmt):
        body = body.body
    if not isinstance(body, st.For) or int(body.kind) != st.ForKind.PARALLEL:
        thread, threads = tirx.Var("thread", "int64"), _threads(body)
        return thread_loop(thread, threads, _with_body(realize, _spread(body, thread, threads)))
    block, thread = tirx.Var("block", "int64"), tirx.Var("thread", "int64")
    if _has_parallel(body):
        threads = _threads(body.body)
        inner = _with_body(realize, _spread(_at(body, block), thread, threads))
        return block_loop(block, body.extent, thread_loop(thread, threads, inner))
    position = block * GRID_THREADS + thread
    extent = tirx.Cast(PrimType("int64"), body.extent)
    guarded = st.IfThenElse(position < extent, _at(body, position), None)
    inner = thread_loop(thread, GRID_THREADS, _with_body(realize, guarded))
    return block_loop(block, tirx.floordiv(extent + (GRID_THREADS - 1), tirx.const(GRID_THREADS, "int64")), inner)


def _with_body(realize: Any, body: Any) -> Any:
    block = realize.block
    bound = s_tir.SBlock([], block.reads, block.writes, block.name_hint, body, alloc_buffers=block.alloc_buffers)
    return s_tir.SBlockRealize([], True, bound)


def _at(loop: Any, position: Any) -> Any:
    """Return the body of an iteration of a loop, by its distance from the first."""
    value = loop.min + tirx.Cast(PrimType(str(loop.loop_var.ty)), position)
    return structural_map(loop.body, (tirx.Var, lambda var: value if var.same_as(loop.loop_var) else var))


def _spread(statement: Any, thread: Any, threads: int) -> Any:
    match statement:
        case st.AttrStmt():
            return _spread(statement.body, thread, threads)
        case st.SeqStmt():
            return st.SeqStmt([_spread(member, thread, threads) for member in statement.seq])
        case st.For() if int(statement.kind) == st.ForKind.PARALLEL or _is_copy(statement):
            return st.SeqStmt([_distributed(statement, thread, threads), _barrier()])
        case st.For() if _has_parallel(statement):
            body = _spread(statement.body, thread, threads)
            return st.For(statement.loop_var, statement.min, statement.extent, st.ForKind.SERIAL, body)
        case st.IfThenElse() if _has_parallel(statement):
            # All threads have read the condition before one of them writes what it depends on.
            branches = [
                _barrier() if branch is None else st.SeqStmt([_barrier(), _spread(branch, thread, threads)])
                for branch in (statement.then_case, statement.else_case)
            ]
            return st.IfThenElse(statement.condition, *branches)
    first = tirx.EQ(thread, tirx.const(0, "int64"))
    return st.SeqStmt([st.IfThenElse(first, statement, None), _barrier()])


def _threads(body: Any) -> int:
    """Return the threads of a block: as many as there are iterations of the longest parallel loop, but THREADS."""
    loops = [loop for loop in nodes_of(body, st.For) if int(loop.kind) == st.ForKind.PARALLEL or _is_copy(loop)]
    known = [int(loop.extent) for loop in loops if isinstance(loop.extent, tirx.IntImm)]
    if not known or len(known) < len(loops):
        return THREADS
    return min(THREADS, -(-max(known) // WARP) * WARP)


def _distributed(loop: Any, thread: Any, threads: int) -> Any:
    """Return the loop with iteration i assigned to thread i modulo the number of threads."""
    kind = str(loop.loop_var.ty)
    step = tirx.Var("step", kind)
    position = step * threads + tirx.Cast(PrimType(kind), thread)
    steps = tirx.floordiv(loop.extent + (threads - 1), tirx.const(threads, kind))
    guarded = st.IfThenElse(position < loop.extent, _at(loop, position), None)
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


def _has_parallel(statement: Any) -> bool:
    """Tell whether there are parallel loops in a statement; a loop itself does not count."""
    return any(
        int(inner.kind) == st.ForKind.PARALLEL and not inner.same_as(statement) for inner in nodes_of(statement, st.For)
    )


def _barrier() -> Any:
    return st.Evaluate(tirx.op.tvm_storage_sync("shared"))

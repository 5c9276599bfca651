"""Schedules what no rule takes: each block on its own, an element per thread, reductions in a loop of the thread.

It is written without TVM's schedule primitives, which have to prove how fused loops split again.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import PrimType
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.identity import IdentitySet
from packager.lower.blocks import inline, schedule_of, variables
from packager.lower.cuda.compound_extents import name_extents
from packager.lower.cuda.thread_loops import GRID_THREADS, block_loop, thread_loop


def schedule_plain(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind the nests of a PrimFunc to threads. Raises ScheduleError for one that is no nest around one block."""
    sch = schedule_of(name_extents(primfunc))
    inline(sch, lambda _sch, _block: True)
    function = sch.mod["main"]
    root = function.body.block
    nests = list(root.body.seq) if isinstance(root.body, st.SeqStmt) else [root.body]
    bound = [_bound(nest) for nest in nests]
    body = st.SeqStmt(bound) if len(bound) > 1 else bound[0]
    block = s_tir.SBlock([], root.reads, root.writes, root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return function.with_body(s_tir.SBlockRealize([], True, block))


def _bound(nest: Any) -> Any:
    loops, inner = [], nest
    while isinstance(inner, st.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, s_tir.SBlockRealize):
        raise ScheduleError("a nest holds more than one block")
    reduced = IdentitySet()
    for axis, value in zip(inner.block.iter_vars, inner.iter_values, strict=True):
        if int(axis.iter_type) != tirx.IterVar.DataPar:
            reduced |= variables(value)
    spatial = [loop for loop in loops if loop.loop_var not in reduced]
    block, thread = tirx.Var("block", "int64"), tirx.Var("thread", "int64")
    rest = block * GRID_THREADS + thread
    total: Any = tirx.const(1, "int64")
    places = []
    for loop in reversed(spatial):
        extent = tirx.Cast(PrimType("int64"), loop.extent)
        index = tirx.floormod(rest, extent) if loop is not spatial[0] else rest
        places.append((loop.loop_var, loop.min + tirx.Cast(PrimType(str(loop.loop_var.ty)), index)))
        rest, total = tirx.floordiv(rest, extent), total * extent
    for loop in reversed([loop for loop in loops if loop.loop_var in reduced]):
        inner = st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.SERIAL, inner)
    for variable, value in places:
        inner = structural_map(inner, (tirx.Var, lambda var, v=variable, e=value: e if var.same_as(v) else var))
    inner = st.IfThenElse(block * GRID_THREADS + thread < total, inner, None)
    count = tirx.floordiv(total + (GRID_THREADS - 1), tirx.const(GRID_THREADS, "int64"))
    return block_loop(block, count, thread_loop(thread, GRID_THREADS, inner))

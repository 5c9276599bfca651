"""Schedules blocks that run a loop for each element of the result, with what makes their operands inlined."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, inline, is_spatial, schedule_of
from packager.lower.cuda.thread_loops import GRID_THREADS


def schedule_element_loops(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a PrimFunc that ends with such a block, a thread for each element. Raises ScheduleError for others."""
    sch = schedule_of(primfunc)
    if not all(is_spatial(sch, block) for block in blocks(sch)):
        raise ScheduleError("the function reduces")
    inline(sch, lambda _sch, _block: True)
    (block, *others) = blocks(sch)
    if others or not nodes_of(sch.get(block).body, st.For):
        raise ScheduleError("the function is not one block with a loop in it")
    outer, thread = sch.split(sch.fuse(*sch.get_loops(block)), [None, GRID_THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch.mod["main"]

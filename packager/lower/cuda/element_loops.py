"""Schedules blocks that run a loop for each element of the result, or compute long; what makes operands is inlined."""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, extents, inline, is_spatial, schedule_of
from packager.lower.cuda.thread_loops import GRID_THREADS
from packager.lower.loop_epilogues import fold_epilogue, with_whole_reads

# Operations of an element from which on it takes long; so few elements that vectors leave multiprocessors idle.
LONG, FEW = 96, 1 << 20
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, tirx.Cast, Call)


def schedule_element_loops(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a PrimFunc that ends with such a block, a thread for each element. Raises ScheduleError for others."""
    sch = schedule_of(primfunc)
    if not all(is_spatial(sch, block) for block in blocks(sch)):
        raise ScheduleError("the function reduces")
    inline(sch, lambda _sch, _block: True)
    (block, *others) = blocks(sch)
    if others and nodes_of(sch.get(block).body, st.For):
        sch = schedule_of(fold_epilogue(sch.mod["main"]))
        (block, *others) = blocks(sch)
    if others or not (nodes_of(sch.get(block).body, st.For) or _takes_long(sch, block)):
        raise ScheduleError("the function is not one block with a loop in it, or a long computation")
    outer, thread = sch.split(sch.fuse(*sch.get_loops(block)), [None, GRID_THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    function = sch.mod["main"]
    name = sch.get(block).name_hint

    def declared(found: Any) -> Any:
        return with_whole_reads(found) if found.name_hint == name else found

    return function.with_body(structural_map(function.body, (s_tir.SBlock, declared)))


def _takes_long(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether few elements take long: splines, say. Values along which vectors are loaded are few then, too."""
    sizes = extents(sch, sch.get_loops(block))
    if not sizes or not all(isinstance(size, int) for size in sizes) or math.prod(sizes) > FEW:
        return False
    return len(nodes_of(sch.get(block).body, *_OPERATIONS)) >= LONG

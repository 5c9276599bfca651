"""Loops that are bound to threads and blocks of a grid without TVM's schedule primitives; functions of one launch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, Range
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.identity import IdentityMap

BLOCK, THREAD = "blockIdx.x", "threadIdx.x"

# Threads of a block whose threads have nothing to do with each other.
GRID_THREADS = 256
_THREAD_INDEX = 1  # tirx.IterVar


def thread_loop(thread: Any, number: int, body: Any) -> Any:
    """Return a loop over the threads of a block."""
    return _binding(thread, THREAD, tirx.const(number, "int64"), body)


def block_loop(block: Any, number: Any, body: Any) -> Any:
    """Return a loop over the blocks of a grid."""
    return _binding(block, BLOCK, tirx.Cast(PrimType("int64"), number), body)


def side_by_side(functions: Sequence[tirx.PrimFunc], sizes: Sequence[tuple[int, int]]) -> tirx.PrimFunc:
    """Return a function with the parameters of all, which are lowered and have so many blocks, and threads of a block.

    Each has a run of the blocks ("horizontal fusion", Li et al. 2022, "Automatic Horizontal Fusion for GPU Kernels"),
    and as many threads as the one with most: others of a block do nothing.
    """
    block, thread = tirx.Var("blockIdx_x", "int32"), tirx.Var("threadIdx_x", "int32")
    most, ends = max(threads for _, threads in sizes), list(itertools.accumulate(blocks for blocks, _ in sizes))
    declarations: list[Any] = []
    body: Any = None
    for function, (blocks, threads), end in reversed(list(zip(functions, sizes, ends, strict=True))):
        declared, own = _of_thread(function.body, block - (end - blocks), thread)
        declarations += declared
        if threads < most:
            own = st.IfThenElse(thread < threads, own, None)
        body = own if body is None else st.IfThenElse(block < end, own, body)
    for variable, extent, tag in ((thread, most, THREAD), (block, ends[-1], BLOCK)):
        count = tirx.const(extent, "int32")
        axis = tirx.IterVar(Range.from_min_extent(tirx.const(0, "int32"), count), variable, _THREAD_INDEX, tag)
        body = st.AttrStmt(axis, "thread_extent", count, body)
    return tirx.PrimFunc([p for function in functions for p in function.params], st.SeqStmt([*declarations, body]))


def _of_thread(body: Any, block: Any, thread: Any) -> tuple[list[Any], Any]:
    """Return what a function declares, and what a thread of a block does."""
    declared, statement = (list(body.seq[:-1]), body.seq[-1]) if isinstance(body, st.SeqStmt) else ([], body)
    places: IdentityMap[Any] = IdentityMap()
    while isinstance(statement, st.AttrStmt) and statement.attr_key == "thread_extent":
        places[statement.node.var] = {BLOCK: block, THREAD: thread}[str(statement.node.thread_tag)]
        statement = statement.body

    def replaced(variable: Any) -> Any:
        if variable not in places:
            return variable
        place = places[variable]
        return place if str(place.ty) == str(variable.ty) else tirx.Cast(variable.ty, place)

    return declared, structural_map(statement, (tirx.Var, replaced))


def _binding(var: Any, tag: str, extent: Any, body: Any) -> Any:
    axis = tirx.IterVar(None, tirx.Var(tag, "int64"), _THREAD_INDEX, tag)
    return st.For(var, tirx.const(0, "int64"), extent, st.ForKind.THREAD_BINDING, body, thread_binding=axis)

"""Pads the rows of a reduction to a number that threads can share: of 3,137 tokens, which is a prime, to 3,200."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.lower.blocks import extents, schedule_of

# From so many rows on blocks share them, too: by large powers of two, if those add no more than this part of the rows.
LONG, MULTIPLES, MOST_ADDED = 512, (512, 256, 128), 32


def multiple_of(rows: int, threads: int) -> int:
    """Return of what many rows should become a multiple, which so many threads share."""
    if rows < LONG:
        return threads
    return next((number for number in MULTIPLES if -rows % number <= rows // MOST_ADDED), 64)


def pad_rows(sch: s_tir.Schedule, reduction: Any, loop: Any, multiple: int) -> s_tir.Schedule:
    """Return a schedule whose ``reduction``, along ``loop`` of a known extent, has a multiple of so many rows.

    Rows behind the last are those that the reduction begins with. Raises ScheduleError if it is no sum or extremum of
    what one store has.
    """
    block, (length,) = sch.get(reduction), extents(sch, [loop])
    extent = tirx.IntImm("int64", -(-length // multiple) * multiple)
    moved = sch.get(loop).loop_var
    (axis,) = [iter_var.var for iter_var in block.iter_vars if iter_var.iter_type == tirx.IterVar.CommReduce]

    def longer(node: Any) -> Any:
        if not node.loop_var.same_as(moved):
            return node
        return st.For(node.loop_var, node.min, extent, node.kind, node.body, node.thread_binding, node.annotations)

    def padded(node: Any) -> Any:
        if node.name_hint != block.name_hint:
            return node
        iter_vars = [
            tirx.IterVar(Range(0, extent), each.var, each.iter_type) if each.var.same_as(axis) else each
            for each in node.iter_vars
        ]
        body = _guarded(node.body, node.init, axis < length)
        return s_tir.SBlock(
            *(iter_vars, node.reads, node.writes, node.name_hint, body, node.init),
            *(node.alloc_buffers, node.match_buffers, node.annotations),
        )

    primfunc = sch.mod["main"]
    return schedule_of(primfunc.with_body(structural_map(primfunc.body, [(st.For, longer), (s_tir.SBlock, padded)])))


def _guarded(store: Any, init: Any, condition: Any) -> Any:
    """Return a reduction's store that adds nothing where the condition is false."""
    if not isinstance(store, st.BufferStore) or not isinstance(init, st.BufferStore):
        raise s_tir.ScheduleError("a reduction of more than one value")
    operands = [store.value.a, store.value.b] if isinstance(store.value, tirx.Add | tirx.Max | tirx.Min) else []
    added = [each for each in operands if not (isinstance(each, TensorLoad) and each.source.same_as(store.buffer))]
    if len(added) != 1:
        raise s_tir.ScheduleError("no sum or extremum")
    value = tirx.if_then_else(condition, added[0], init.value)
    left = operands[0] if added[0].same_as(operands[1]) else operands[1]
    return st.BufferStore(store.buffer, type(store.value)(left, value), store.indices)

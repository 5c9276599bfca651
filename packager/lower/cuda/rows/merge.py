"""Gives rows that run along several axes, as those of instance normalizations of volumes, one axis instead.

The schedules of rows hold vectors of one contiguous axis in registers or in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx.buffer import is_buffer_var

from packager.graph.identity import same_objects
from packager.lower.blocks import blocks, extents, is_reduction, kinds, loads


def merge_rows(sch: s_tir.Schedule) -> s_tir.Schedule:
    """Merge the axes along which rows of a normalization run; parameters that have them are seen with fewer axes.

    Raises ScheduleError if rows are read once only, run along one axis, or if not all extents are known.
    """
    found = blocks(sch)
    reduction = next((block for block in found if is_reduction(sch, block)), None)
    if reduction is None:
        raise ScheduleError("no reduction")
    sizes, trail = extents(sch, sch.get_loops(reduction)), kinds(sch, reduction).count(tirx.IterVar.CommReduce)
    shapes = [list(p.shape) for p in sch.mod["main"].params if is_buffer_var(p)]
    if not all(isinstance(e, tirx.IntImm) for shape in shapes for e in shape) or not all(
        isinstance(e, int) for e in sizes
    ):
        raise ScheduleError("extents are not known")
    full = [block for block in found if extents(sch, sch.get_loops(block)) == sizes]
    if trail < 2 or len(full) < 2:
        raise ScheduleError("rows run along one axis, or are read once")
    rows = sizes[-trail:]
    for block in full:
        _check(sch, block, rows)
    for block in full:
        _merge_axes(sch, block, rows)
    # Indices become quotients and remainders of the merged axis, which cancel.
    return s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod), error_render_level="none")


def _check(sch: s_tir.Schedule, block: Any, rows: Sequence[int]) -> None:
    """Raise ScheduleError unless a block reads and writes along its last axes in order, or not along them at all."""
    axes = [var.var for var in sch.get(block).iter_vars]
    last = axes[-len(rows) :]
    if len(axes) != len(sch.get_loops(block)):
        raise ScheduleError("loops and block variables do not correspond")
    for load in loads(sch.get(block).body):
        if _has(load.source, rows) and not same_objects(list(load.indices)[-len(rows) :], last):
            raise ScheduleError("a row is not read in order")


def _merge_axes(sch: s_tir.Schedule, block: Any, rows: Sequence[int]) -> None:
    def merged(*index: Any) -> list[Any]:
        position = index[-len(rows)]
        for at, extent in zip(index[-len(rows) + 1 :], rows[1:], strict=True):
            position = position * extent + at
        return [*index[: -len(rows)], position]

    count = len(sch.get(block).iter_vars)
    sch.transform_block_layout(block, tirx.IndexMap.from_func(merged, ndim=count))
    for kind in ("read", "write"):
        regions = sch.get(block).reads if kind == "read" else sch.get(block).writes
        for number, region in enumerate(regions):
            if _has(region.source, rows):  # of the blocks before this one has changed those that both have
                sch.transform_layout(
                    block, (kind, number), tirx.IndexMap.from_func(merged, ndim=len(region.source.shape))
                )


def _has(buffer: Any, rows: Sequence[int]) -> bool:
    """Whether the last axes of a buffer are those of rows."""
    shape = list(buffer.shape)[-len(rows) :]
    return len(shape) == len(rows) and all(int(a) == b for a, b in zip(shape, rows, strict=True))

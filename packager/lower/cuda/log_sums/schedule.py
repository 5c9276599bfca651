"""Schedules logarithms of sums of columns: a thread block has a tile of columns, whose elements its threads share."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.lower.blocks import (
    blocks,
    check_reductions,
    extents,
    inline,
    is_reduction,
    is_spatial,
    kinds,
    loads_of,
    schedule_of,
)

# The columns of a tile, where an axis has more; threads of a block.
TILE, MOST_THREADS = 32, 1024


def schedule_log_sums(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind two reductions of columns, each by parts, to threads. Raises ScheduleError if the function is another."""
    sch = schedule_of(primfunc)
    check_reductions(sch)
    inline(sch, lambda sch, block: not _is_held(sch, block))
    found = blocks(sch)
    if [is_reduction(sch, block) for block in found] != [False, True, True, True, True, False]:
        raise ScheduleError("not two reductions by parts of what is held, and what is computed of them")
    held, *reductions, end = found
    if not is_spatial(sch, held) or not is_spatial(sch, end):
        raise ScheduleError("reductions of another kind")
    most_of_part, most, total_of_part, total = reductions
    part = _part_axis(sch, most_of_part, most)
    if part is None or part != _part_axis(sch, total_of_part, total):
        raise ScheduleError("no reductions of parts")
    sizes = [[size for size in _kept(sch, block) if size != 1] for block in (total, end)]
    if sizes[0] != sizes[1]:
        raise ScheduleError("what follows has other elements than the reductions")
    parts = int(sch.get(most_of_part).iter_vars[part].dom.extent)
    grid, column = _bind_tiles(sch, end, min(2 * TILE, MOST_THREADS // parts))
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, column, preserve_unit_loops=True)
    sch.decompose_reduction(total, sch.get_loops(total)[-1])
    _share_columns(sch, total_of_part, grid, part)
    sch.set_scope(most, 0, "local")
    sch.compute_at(most, grid, preserve_unit_loops=True)
    sch.bind(sch.fuse(*list(sch.get_loops(most))[1:-1]), "threadIdx.x")
    sch.decompose_reduction(most, sch.get_loops(most)[-1])
    _share_columns(sch, most_of_part, grid, part)
    sch.set_scope(held, 0, "local")
    sch.compute_at(held, grid, preserve_unit_loops=True)
    *loops, step = list(sch.get_loops(held))[1:]
    _bind_shares(sch, loops, part)
    sch.unroll(step)
    return sch.mod["main"]


def _is_held(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether two reductions read what a block makes of others."""
    readers = list(sch.get_consumers(block))
    return len(readers) == 2 and all(is_reduction(sch, reader) for reader in readers)


def _part_axis(sch: s_tir.Schedule, of_part: Any, whole: Any) -> int | None:
    """Return which axis of partial results is that of parts; None if the other block does not reduce that alone."""
    reduced = [var.var for var in sch.get(whole).iter_vars if var.iter_type == tirx.IterVar.CommReduce]
    read = loads_of(sch, whole, sch.get(of_part).writes[0].source)
    if len(read) != 1 or len(reduced) != 1 or kinds(sch, of_part).count(tirx.IterVar.CommReduce) != 1:
        return None
    return next((axis for axis, index in enumerate(read[0].indices) if index.same_as(reduced[0])), None)


def _kept(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the extents of the axes that a block keeps: integers, or expressions as text."""
    kept = [var.dom.extent for var in sch.get(block).iter_vars if var.iter_type == tirx.IterVar.DataPar]
    return [int(extent) if isinstance(extent, tirx.IntImm) else str(extent) for extent in kept]


def _bind_tiles(sch: s_tir.Schedule, end: Any, most: int) -> tuple[Any, Any]:
    """Bind the loops of the result; return that of tiles and that of a tile's columns, at most so many."""
    loops = list(sch.get_loops(end))
    *others, last = extents(sch, loops)
    if not isinstance(last, int):
        raise ScheduleError("columns of unknown number")
    if last > most:
        tile, column = sch.split(loops[-1], [None, TILE])
        grid = [*loops[:-1], tile]
    elif 2 * last > most or not others or not isinstance(others[-1], int):
        grid, column = loops[:-1] or [sch.add_unit_loop(loops[-1])], loops[-1]
    else:
        outer, several = sch.split(loops[-2], [None, min(most // last, others[-1])])
        grid, column = [*loops[:-2], outer], sch.fuse(several, loops[-1])
    whole = sch.fuse(*grid) if len(grid) > 1 else grid[0]
    sch.bind(whole, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    return whole, column


def _share_columns(sch: s_tir.Schedule, of_part: Any, grid: Any, part: int) -> None:
    """Have a thread compute each part of each column of a tile, and share it."""
    result = sch.cache_write(of_part, 0, "local")
    sch.set_scope(result, 0, "shared")
    sch.compute_at(result, grid, preserve_unit_loops=True)
    columns = _bind_shares(sch, list(sch.get_loops(result))[1:], part)
    sch.compute_at(of_part, columns, preserve_unit_loops=True)
    step = list(sch.get_loops(of_part))[-1]
    sch.decompose_reduction(of_part, step)
    sch.unroll(step)


def _bind_shares(sch: s_tir.Schedule, loops: list[Any], part: int) -> Any:
    """Bind loops over the parts of the columns of a tile; return that of the columns."""
    sharer = loops.pop(part)
    sch.reorder(sharer, *loops)
    columns = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    sch.bind(sharer, "threadIdx.y")
    sch.bind(columns, "threadIdx.x")
    return columns

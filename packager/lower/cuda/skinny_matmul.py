"""Schedules matmuls of few rows whose operands both have the reduction axis last: a warp computes an element.

The warps of a block have the rows of a column in common, so that all but one read its weights from the cache. Of one
row dlight's GEMV rule does as well.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.lower.blocks import blocks, extents, factors_of, inline, is_reduction, loads, schedule_of, variables

# The most rows: with more of them tiles are faster.
MAX_ROWS = 8
WARP = 32
# The shortest reduction.
MIN_LENGTH = 16
# Warps of a block, and the steps that a warp's loop is unrolled by.
WARPS, UNROLLED = 4, 16


def schedule_skinny_matmul(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a matmul and its elementwise epilogue to threads. Raises ScheduleError if the rule does not apply."""
    sch = schedule_of(primfunc)
    inline(sch, lambda _sch, _block: True)
    found = blocks(sch)
    product = found[0]
    if len(found) > 2 or not is_reduction(sch, product):
        raise ScheduleError("not a matmul with an epilogue")
    rows = _rows(sch, product)
    result = found[1] if len(found) == 2 else sch.cache_write(product, 0, "global")
    loops = list(sch.get_loops(result))
    if extents(sch, loops) != extents(sch, list(sch.get_loops(product))[:-1]):
        raise ScheduleError("the epilogue has another shape")
    order = [loop for place, loop in enumerate(loops) if place not in rows] + [loops[place] for place in rows]
    sch.reorder(*order)
    grid, warp = sch.split(sch.fuse(*order), [None, WARPS])
    sch.bind(grid, "blockIdx.x")
    sch.bind(warp, "threadIdx.y")
    sch.set_scope(product, 0, "local")
    sch.compute_at(product, warp, preserve_unit_loops=True)
    step, lane = sch.split(sch.get_loops(product)[-1], [None, WARP])
    outer, several = sch.split(step, [None, UNROLLED])
    sch.reorder(lane, outer, several)
    sch.bind(lane, "threadIdx.x")
    sch.unroll(several)
    _, one = sch.split(sch.add_unit_loop(result), [None, WARP])
    sch.bind(one, "threadIdx.x")
    # Raises if the cross-thread reduction cannot be lowered as scheduled.
    s_tir.transform.LowerCrossThreadReduction()(s_tir.transform.CanonicalizeLoop()(sch.mod))
    return sch.mod["main"]


def _rows(sch: s_tir.Schedule, product: Any) -> list[int]:
    """Return the places of the axes that are the rows: those of one operand alone, which are few in all."""
    operands = [loads(factor) for factor in factors_of(sch, product) or ()]
    axes = list(sch.get(product).iter_vars)
    sizes = extents(sch, sch.get_loops(product))
    if list(map(len, operands)) != [1, 1] or len(sizes) != len(axes):
        raise ScheduleError("not a product of two tensors")
    reduced = [axis.var for axis in axes if axis.iter_type == tirx.IterVar.CommReduce]
    if len(reduced) != 1 or not axes[-1].var.same_as(reduced[0]):
        raise ScheduleError("not one reduction, inside")
    if not all(load.indices[-1].same_as(reduced[0]) for (load,) in operands):
        raise ScheduleError("an operand is not contiguous along the reduction")
    if not isinstance(sizes[-1], int) or sizes[-1] < MIN_LENGTH:
        raise ScheduleError("a reduction that does not fill half a warp")
    left, right = (variables(*load.indices) for (load,) in operands)
    sides = [
        [place for place, axis in enumerate(axes) if axis.var in own and axis.var not in other]
        for own, other in ((left, right), (right, left))
    ]
    counts = [math.prod(sizes[p] if isinstance(sizes[p], int) else MAX_ROWS + 1 for p in side) for side in sides]
    rows = sides[counts.index(min(counts))]
    if not all(sides) or not 1 < min(counts) <= MAX_ROWS:
        raise ScheduleError("not few rows")
    return rows

"""Row reductions on CPUs: sums and extremes along contiguous elements, in vectors of partial results.

A sum in the order of the elements waits for each addition. Here vectors are added up, and their lanes at the end, which
is more exact as well.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.lower.blocks import kinds, variables

# Partial results, best first: four 256-bit registers of floats hide the latency of an addition.
PARTIALS = (32, 40, 48, 56, 24, 16, 8, 4, 7, 6, 5)


def partials_of(count: int) -> int:
    """Return how many partial results a reduction of so many elements has; 0 if no vector divides them."""
    return next((n for n in PARTIALS if count % n == 0 and count >= 2 * n), 0)


def reduce_rows(sch: s_tir.Schedule, block: Any) -> None:
    """Schedule a reduction over contiguous elements. Raises ScheduleError if it is another."""
    loops, found = list(sch.get_loops(block)), kinds(sch, block)
    if len(found) != len(loops):
        raise ScheduleError("loops and block variables do not correspond")
    spatial = [loop for loop, kind in zip(loops, found, strict=True) if kind == tirx.IterVar.DataPar]
    reduced = [loop for loop, kind in zip(loops, found, strict=True) if kind == tirx.IterVar.CommReduce]
    if loops != [*spatial, *reduced] or not _reads_rows(sch, block):
        raise ScheduleError("no row reduction")
    if not spatial:  # a single row
        spatial = [sch.add_unit_loop(loops[0])]
    extents = [sch.get(loop).extent for loop in reduced]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        raise ScheduleError("rows of symbolic extents")
    count = math.prod(map(int, extents))
    partials = partials_of(count)
    if not partials:
        raise ScheduleError("rows that no vector divides")
    whole = sch.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    _, lane = sch.split(whole, [None, partials])
    rank = len(sch.get(block).writes[0].source.shape)
    vectors = sch.rfactor(lane, rank)
    outer = list(sch.get_loops(block))[: len(spatial)]
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.compute_at(vectors, fused)
    sch.set_scope(vectors, 0, "local")
    *_, lanes, steps = sch.get_loops(vectors)
    sch.reorder(steps, lanes)
    sch.vectorize(lanes)
    sch.parallel(fused)
    sch.decompose_reduction(vectors, steps)


def _reads_rows(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether a block reads along the innermost axis that it reduces only what is contiguous along it."""
    found = sch.get(block)
    reduced = [var.var for var in found.iter_vars if var.iter_type == tirx.IterVar.CommReduce]
    if len(found.writes) != 1 or not reduced:
        return False
    contiguous = False
    for region in found.reads:
        *before, last = [axis.min for axis in region.region] or [tirx.const(0)]
        is_row = isinstance(last, tirx.Var) and last.same_as(reduced[-1])
        others = variables(*before) if is_row else variables(*before, last)
        if reduced[-1] in others or (not is_row and any(variable in others for variable in reduced)):
            return False
        contiguous = contiguous or is_row
    return contiguous

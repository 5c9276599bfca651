"""Schedules reductions of short rows that do not fill vectors, such as 7 x 7 pooling in NCHW: one thread per row.

Adjacent rows are contiguous, so a block copies many of them to shared memory as vectors. Rows of odd length then start
in different banks.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.graph.identity import same_objects
from packager.lower.blocks import (
    VECTOR_BYTES,
    blocks,
    extents,
    inline,
    is_reduction,
    itemsize,
    kinds,
    loads,
    read_index,
    schedule_of,
    unroll,
)

# Rows per block, one per thread.
ROWS = 128
# The range of row lengths, in elements.
MIN_LENGTH = 9
MAX_LENGTH = 127
# Shared memory per block, in bytes, such that several blocks fit an SM.
SHARED_BYTES = 32 * 1024


def schedule_short_row_reduction(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a reduction along short last axes and its elementwise epilogue to threads.

    Raises ScheduleError if the rule does not apply.
    """
    sch = schedule_of(primfunc)
    inline(sch, lambda _sch, _block: True)
    found = blocks(sch)
    reduction = found[0]
    if len(found) > 2 or not is_reduction(sch, reduction):
        raise ScheduleError("not a single reduction")
    operand = _operand(sch, reduction)
    result = found[1] if len(found) == 2 else sch.cache_write(reduction, 0, "global")
    sch.set_scope(reduction, 0, "local")
    held = sch.cache_read(reduction, read_index(sch, reduction, operand), "shared")
    loops = list(sch.get_loops(result))
    tile, thread = sch.split(loops[-1], [None, ROWS])
    grid = sch.fuse(*loops[:-1], tile)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.compute_at(reduction, thread, preserve_unit_loops=True)
    inner = list(sch.get_loops(reduction))[2:]
    kept = len(operand.shape) - kinds(sch, reduction).count(tirx.IterVar.CommReduce)
    unroll(sch, inner)
    sch.decompose_reduction(reduction, inner[kept])
    sch.compute_at(held, grid, preserve_unit_loops=True)
    width = VECTOR_BYTES // itemsize(operand)
    step, copier, vector = sch.split(sch.fuse(*list(sch.get_loops(held))[1:]), [None, ROWS, width])
    sch.unroll(step)
    sch.bind(copier, "threadIdx.x")
    sch.vectorize(vector)
    return sch.mod["main"]


def _operand(sch: s_tir.Schedule, reduction: Any) -> Any:
    """Return the single tensor that is reduced, along its last axes."""
    written = sch.get(reduction).writes[0].source
    found = [load for load in loads(sch.get(reduction).body) if not load.source.same_as(written)]
    iters = sch.get(reduction).iter_vars
    axes = [v.var for v in iters]
    if not found or not all(same_objects(load.indices, axes) for load in found):
        raise ScheduleError("the operand is not read in row-major order")
    operand = found[0].source
    trail = kinds(sch, reduction).count(tirx.IterVar.CommReduce)
    sizes = extents(sch, sch.get_loops(reduction))
    if not all(load.source.same_as(operand) for load in found) or len(sizes) != len(axes):
        raise ScheduleError("several operands")
    if any(v.iter_type == tirx.IterVar.CommReduce for v in iters[: len(iters) - trail]) or len(iters) == trail:
        raise ScheduleError("the reduction is not along the last axes")
    if not all(isinstance(size, int) for size in sizes[-trail - 1 :]) or sizes[-trail - 1] % ROWS:
        raise ScheduleError("rows do not fill thread blocks")
    length = math.prod(sizes[-trail:])
    if not MIN_LENGTH <= length <= MAX_LENGTH or length % 2 == 0 or ROWS * length * itemsize(operand) > SHARED_BYTES:
        raise ScheduleError("rows are too short, too long, or of even length")
    return operand

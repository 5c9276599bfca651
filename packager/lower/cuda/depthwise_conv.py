"""Schedules depthwise convolutions in NHWC.

A thread computes a few adjacent positions of one vector of channels: a loaded row segment serves several windows, and
weights are held in registers. A block covers adjacent rows, which share its L1 cache; its weights are staged in shared
memory, channels innermost.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.graph.identity import IdentitySet, position
from packager.lower.blocks import (
    VECTOR_BYTES,
    blocks,
    extents,
    factors_of,
    inline,
    is_movement,
    is_reduction,
    is_spatial,
    itemsize,
    loads,
    loads_of,
    read_index,
    schedule_of,
    unroll,
    variables,
)

# Vectors of channels per block: 128 contiguous bytes, one cache line.
LANES = 8
# Positions along a row that a thread computes, best first.
POSITIONS = (4, 7, 5, 3, 2, 1)
# Threads along a row, and in a block.
ACROSS = 8
THREADS = 256
# The largest window side that is unrolled.
MAX_WINDOW = 7


def schedule_depthwise_conv(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a depthwise convolution and its elementwise epilogue to threads.

    Raises ScheduleError if the rule does not apply.
    """
    sch = schedule_of(primfunc)
    inline(sch, lambda sch, block: not any(is_reduction(sch, c) for c in sch.get_consumers(block)))
    found = [block for block in blocks(sch) if is_reduction(sch, block)]
    if len(found) != 1:
        raise ScheduleError("not a single reduction")
    reduction = found[0]
    image, weights = _operands(sch, reduction)
    before = [b for b in blocks(sch) if is_spatial(sch, b) and sch.get(b).writes[0].source.same_as(image)]
    after = list(sch.get_consumers(reduction))
    if any(not is_movement(sch, b) for b in before) or len(before) + len(after) + 1 != len(blocks(sch)):
        raise ScheduleError("more than padding, a convolution and its epilogue")
    pad = before[0] if before else sch.cache_read(reduction, read_index(sch, reduction, image), "local")
    held = sch.cache_read(reduction, read_index(sch, reduction, weights), "shared")
    _channels_last(sch, held, reduction)
    if after:
        sch.set_scope(reduction, 0, "local")
        result = sch.cache_write(after[0], 0, "local")
    else:
        result = sch.cache_write(reduction, 0, "local")
    grid, thread = _bind(sch, result, itemsize(image))
    for block in after:
        sch.compute_at(block, thread, preserve_unit_loops=True)
        unroll(sch, list(sch.get_loops(block))[2:])
    _compute(sch, reduction, thread, pad, held)
    _fill(sch, held, grid, extents(sch, [thread])[0])
    return sch.mod["main"]


def _operands(sch: s_tir.Schedule, reduction: Any) -> tuple[Any, Any]:
    """Return the data and weight operands."""
    iters = sch.get(reduction).iter_vars
    kept = [v.var for v in iters if v.iter_type == tirx.IterVar.DataPar]
    reduced = IdentitySet(v.var for v in iters if v.iter_type == tirx.IterVar.CommReduce)
    sizes = [int(v.dom.extent) if isinstance(v.dom.extent, tirx.IntImm) else 0 for v in iters]
    if len(kept) != 4 or len(iters) != len(sch.get_loops(reduction)) or not all(sizes[1:]):
        raise ScheduleError("not a 2-D window of static size")
    if any(size > MAX_WINDOW for size in sizes[4:]):
        raise ScheduleError("the window is too large")
    factors = [load for factor in factors_of(sch, reduction) or () for load in loads(factor)]
    if len(factors) != 2:
        raise ScheduleError("not a sum of products")
    for image, weights in (factors, factors[::-1]):
        slides = [variables(index) for index in image.indices]
        fixed = variables(*weights.indices)
        if (
            len(slides) == 4
            and all(k in s for s, k in zip(slides, kept, strict=True))
            and any(s & reduced for s in slides)
            and [k in fixed for k in kept] == [False, False, False, True]
            and all(isinstance(index, tirx.Var) for index in weights.indices)
        ):
            return image.source, weights.source
    raise ScheduleError("not a depthwise convolution")


def _channels_last(sch: s_tir.Schedule, held: Any, reduction: Any) -> None:
    """Make channels the innermost axis of the staged weights."""
    last = [v.var for v in sch.get(reduction).iter_vars if v.iter_type == tirx.IterVar.DataPar][-1]
    buffer = sch.get(held).writes[0].source
    (load,) = loads_of(sch, reduction, buffer)
    axis = position(load.indices, last)

    def to_layout(*index: Any) -> list[Any]:
        return [*index[:axis], *index[axis + 1 :], index[axis]]

    sch.transform_layout(held, ("write", 0), tirx.IndexMap.from_func(to_layout, ndim=len(buffer.shape)))


def _bind(sch: s_tir.Schedule, result: Any, size: int) -> tuple[Any, Any]:
    """Tile the result and store it as vectors; return the loops of blocks and of threads."""
    loops = list(sch.get_loops(result))
    if len(loops) != 4:
        raise ScheduleError("the result's axes differ from the convolution's")
    batch, row, column, channel = loops
    _, height, width, channels = extents(sch, loops)
    vector = VECTOR_BYTES // size
    if channels % vector:
        raise ScheduleError("channels do not fill vectors")
    lanes = _divisor(channels // vector, LANES)
    positions = next(p for p in POSITIONS if not width % p)
    across = _divisor(width // positions, ACROSS)
    down = _divisor(height, max(THREADS // (lanes * across), 1))
    row_outer, row = sch.split(row, [None, down])
    column_outer, column, position = sch.split(column, [None, across, positions])
    channel_outer, lane, element = sch.split(channel, [None, lanes, vector])
    sch.reorder(batch, row_outer, column_outer, channel_outer, row, column, lane, position, element)
    grid = sch.fuse(batch, row_outer, column_outer, channel_outer)
    thread = sch.fuse(row, column, lane)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(position)
    sch.vectorize(element)
    return grid, thread


def _divisor(number: int, most: int) -> int:
    return max(d for d in range(1, most + 1) if not number % d)


def _compute(sch: s_tir.Schedule, reduction: Any, thread: Any, pad: Any, held: Any) -> None:
    """Accumulate a window row by row: load its data first, and hold one row of weights in registers."""
    sch.compute_at(reduction, thread, preserve_unit_loops=True)
    inner = list(sch.get_loops(reduction))[2:]
    batch, row, column, channel, *window = inner
    sch.reorder(batch, row, *window, column, channel)
    _load(sch, pad, row)
    _load(
        sch, sch.cache_read(reduction, read_index(sch, reduction, sch.get(held).writes[0].source), "local"), window[0]
    )
    unroll(sch, (*window, column, channel))
    sch.decompose_reduction(reduction, window[0])


def _load(sch: s_tir.Schedule, block: Any, loop: Any) -> None:
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, loop, preserve_unit_loops=True)
    depth = len(sch.get_loops(block)) - len(sch.get(block).iter_vars)
    *outer, vector = list(sch.get_loops(block))[depth:]
    unroll(sch, outer)
    sch.vectorize(vector)


def _fill(sch: s_tir.Schedule, held: Any, grid: Any, threads: int) -> None:
    """Copy the weights of a block to shared memory with all its threads."""
    sch.compute_at(held, grid, preserve_unit_loops=True)
    _, thread = sch.split(sch.fuse(*list(sch.get_loops(held))[1:]), [None, threads])
    sch.bind(thread, "threadIdx.x")

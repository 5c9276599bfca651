"""Depthwise convolutions: sums over a window of products, with weights of their own for each channel.

A thread computes a few neighboring positions of one vector of channels: what it loads of a row serves several windows,
and registers hold the weights. A block covers neighboring rows, which meet in its cache; its weights lie in shared
memory, channels innermost, whatever order they come in.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.graph.identity import IdentitySet, position
from packager.lower.cuda.blocks import (
    VECTOR_BYTES,
    blocks,
    extents,
    inline,
    is_movement,
    is_reduction,
    is_spatial,
    itemsize,
    loads,
    loads_of,
    place_of,
    schedule_of,
    variables,
)

# Vectors of channels side by side in a block: 128 bytes in a row, a line of the cache.
LANES = 8
# Positions along a row that a thread computes, the best first.
POSITIONS = (4, 7, 5, 3, 2, 1)
# Threads along a row, and in a block.
ACROSS = 8
THREADS = 256
# The largest side of a window that is unrolled.
MAX_WINDOW = 7


def schedule_windows(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a depthwise convolution in NHWC, and what is computed elementwise from it, to threads.

    Raises ScheduleError for a function of another form.
    """
    sch = schedule_of(primfunc)
    inline(sch, lambda sch, block: not any(is_reduction(sch, c) for c in sch.get_consumers(block)))
    found = [block for block in blocks(sch) if is_reduction(sch, block)]
    if len(found) != 1:
        raise ScheduleError("not one reduction")
    reduction = found[0]
    image, weights = _operands(sch, reduction)
    before = [b for b in blocks(sch) if is_spatial(sch, b) and _writes(sch, b, image)]
    after = list(sch.get_consumers(reduction))
    if any(not is_movement(sch, b) for b in before) or len(before) + len(after) + 1 != len(blocks(sch)):
        raise ScheduleError("more than padding, a convolution and what follows it")
    pad = before[0] if before else sch.cache_read(reduction, place_of(sch, reduction, image), "local")
    held = sch.cache_read(reduction, place_of(sch, reduction, weights), "shared")
    _channels_last(sch, held, reduction)
    if after:
        sch.set_scope(reduction, 0, "local")
        result = sch.cache_write(after[0], 0, "local")
    else:
        result = sch.cache_write(reduction, 0, "local")
    grid, thread = _bind(sch, result, itemsize(image))
    for block in after:
        sch.compute_at(block, thread, preserve_unit_loops=True)
        for loop in list(sch.get_loops(block))[2:]:
            sch.unroll(loop)
    _compute(sch, reduction, thread, pad, held)
    _fill(sch, held, grid, extents(sch, [thread])[0])
    return sch.mod["main"]


def _operands(sch: s_tir.Schedule, reduction: Any) -> tuple[Any, Any]:
    """Return what a window slides over, and the weights of its places."""
    iters = sch.get(reduction).iter_vars
    kept = [v.var for v in iters if v.iter_type == tirx.IterVar.DataPar]
    reduced = IdentitySet(v.var for v in iters if v.iter_type == tirx.IterVar.CommReduce)
    sizes = [int(v.dom.extent) if isinstance(v.dom.extent, tirx.IntImm) else 0 for v in iters]
    if len(kept) != 4 or len(iters) != len(sch.get_loops(reduction)) or not all(sizes[1:]):
        raise ScheduleError("no convolution of a known height and width")
    if any(size > MAX_WINDOW for size in sizes[4:]):
        raise ScheduleError("too large a window")
    value: Any = getattr(sch.get(reduction).body, "value", None)
    factors = loads(value.b) if isinstance(value, tirx.Add) else []
    if len(factors) != 2 or not isinstance(_bare(value.b), tirx.Mul):
        raise ScheduleError("no sum of products")
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
    raise ScheduleError("no depthwise convolution")


def _bare(value: Any) -> Any:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _writes(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    return bool(sch.get(block).writes[0].source.same_as(buffer))


def _channels_last(sch: s_tir.Schedule, held: Any, reduction: Any) -> None:
    """Put the axis of the channels last in the copy of the weights."""
    last = [v.var for v in sch.get(reduction).iter_vars if v.iter_type == tirx.IterVar.DataPar][-1]
    buffer = sch.get(held).writes[0].source
    (load,) = loads_of(sch, reduction, buffer)
    axis = position(load.indices, last)

    def lie(*index: Any) -> list[Any]:
        return [*index[:axis], *index[axis + 1 :], index[axis]]

    sch.transform_layout(held, ("write", 0), tirx.IndexMap.from_func(lie, ndim=len(buffer.shape)))


def _bind(sch: s_tir.Schedule, result: Any, size: int) -> tuple[Any, Any]:
    """Tile the result and store it as vectors; return the loops of blocks and of threads."""
    loops = list(sch.get_loops(result))
    if len(loops) != 4:
        raise ScheduleError("the result has other axes than the convolution")
    batch, row, column, channel = loops
    _, height, width, channels = extents(sch, loops)
    vector = VECTOR_BYTES // size
    if channels % vector:
        raise ScheduleError("channels make no vectors")
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
    """Sum a window row by row. What it reads of the image is loaded first; of the weights, a row lies in registers."""
    sch.compute_at(reduction, thread, preserve_unit_loops=True)
    inner = list(sch.get_loops(reduction))[2:]
    batch, row, column, channel, *window = inner
    sch.reorder(batch, row, *window, column, channel)
    _load(sch, pad, row)
    _load(sch, sch.cache_read(reduction, place_of(sch, reduction, sch.get(held).writes[0].source), "local"), window[0])
    for loop in (*window, column, channel):
        sch.unroll(loop)
    sch.decompose_reduction(reduction, window[0])


def _load(sch: s_tir.Schedule, block: Any, loop: Any) -> None:
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, loop, preserve_unit_loops=True)
    depth = len(sch.get_loops(block)) - len(sch.get(block).iter_vars)
    *outer, vector = list(sch.get_loops(block))[depth:]
    for each in outer:
        sch.unroll(each)
    sch.vectorize(vector)


def _fill(sch: s_tir.Schedule, held: Any, grid: Any, threads: int) -> None:
    """Let the threads of a block copy its weights."""
    sch.compute_at(held, grid, preserve_unit_loops=True)
    loops = list(sch.get_loops(held))[1:]
    _, thread = sch.split(sch.fuse(*loops), [None, threads])
    sch.bind(thread, "threadIdx.x")

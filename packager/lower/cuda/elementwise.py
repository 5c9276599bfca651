"""Schedules elementwise operators and copies for memory bandwidth, with 16-byte loads and stores where possible."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import ScheduleError

from packager.graph.identity import IdentitySet, same_objects
from packager.lower.blocks import (
    MAX_WIDE_BYTES,
    VECTOR_BYTES,
    alternatives,
    attempt,
    extents,
    is_aligned,
    is_conditional,
    is_contiguous,
    is_movement,
    is_scatter,
    itemsize,
    loads,
    loads_of,
    read_index,
    reads_of,
    unroll,
    variables,
)
from packager.lower.cuda.transpose import transpose, transpose_narrow

THREADS = 256
# Bytes per thread, at a stride of one thread block, if elements do not fill vectors.
EACH_BYTES = 16
# The most elements of a row per thread, at a stride of one warp, if rows do not fill vectors.
WARP = 32
MAX_STEPS = 32
# Vectors per thread along several axes.
VECTORS = 2
# Elements of vectors that are added up in float32, of which there are no longer ones.
WIDTH_OF_SUMS = 4
# The minimum number of blocks for several vectors per thread.
MIN_BLOCKS = 512


def schedule_elementwise(sch: s_tir.Schedule, block: Any) -> None:
    """Bind the loops of a block without reductions to threads."""
    by_rows = (transpose, transpose_narrow, _vectorize_flat, _copy_vectors, _sum_vectors, vectorize, _warp_per_row)
    ways = () if is_scatter(sch, block) else by_rows
    if not any(attempt(sch, each, block) for each in (*ways, _one_element_per_step)):
        raise ScheduleError(f"block {sch.get(block).name_hint} cannot be bound to threads")


def _loops(sch: s_tir.Schedule, block: Any) -> list[Any]:
    return list(sch.get_loops(block)) or [sch.add_unit_loop(block)]


def _one_element_per_step(sch: s_tir.Schedule, block: Any) -> None:
    loops = _loops(sch, block)
    each = EACH_BYTES // min(itemsize(b) for b in (*reads_of(sch, block), sch.get(block).writes[0].source))
    bind_threads(sch, loops, _threads(extents(sch, loops)), each)


def _warp_per_row(sch: s_tir.Schedule, block: Any) -> None:
    """Assign a warp to each of a few rows that do not fill vectors: no thread divides by the row length.

    A thread loads all its elements before it stores the first.
    """
    *sizes, length = extents(sch, _loops(sch, block))
    if not isinstance(length, int) or not WARP <= length <= MAX_STEPS * WARP or len(sch.get(block).iter_vars) < 2:
        raise ScheduleError("rows are too short or too long for a warp")
    steps = -(-length // WARP)
    store = sch.cache_write(block, 0, "local")
    rank = len(sch.get(block).writes[0].source.shape)
    few = all(isinstance(size, int) for size in sizes) and math.prod(sizes) * length < MIN_BLOCKS * THREADS
    count = 1 if few else max(MAX_STEPS // steps, 1)

    def to_layout(*index: Any) -> list[Any]:
        *before, line, position = index
        return [*before, line // count, line % count, position // WARP, position % WARP]

    index_map = tirx.IndexMap.from_func(to_layout, ndim=rank)
    *outer, rows, column = list(sch.get_loops(store))
    tile, row, several = sch.split(rows, [None, THREADS // WARP, count])
    grid = sch.fuse(*outer, tile) if outer else tile
    step, lane = sch.split(column, [None, WARP])
    sch.reorder(grid, row, lane, several, step)
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.compute_at(block, row, preserve_unit_loops=True)
    *above, own_column = list(sch.get_loops(block))
    own_step, own_lane = sch.split(own_column, [None, WARP])
    sch.reorder(own_lane, *above[2:], own_step)
    sch.bind(own_lane, "threadIdx.x")
    unroll(sch, (*above[2:], own_step, several, step))
    sch.transform_layout(block, ("write", 0), index_map, assume_injective_transform=True)


def bind_threads(sch: s_tir.Schedule, loops: list[Any], threads: int, each: int = 1) -> Any:
    """Bind nested loops to blocks and threads; return the thread loop.

    A thread handles ``each`` elements if there are many. Loops of symbolic extent stay out of the fused thread loop, so
    that index divisions have small operands, which the compiler does in 32 bits.
    """
    sizes = extents(sch, loops)
    known = len(sizes)
    while known and isinstance(sizes[known - 1], int):
        known -= 1
    length = math.prod(sizes[known:])
    if 0 < known < len(sizes):
        inner = sch.fuse(*loops[known:]) if len(loops) - known > 1 else loops[known]
        counts = (THREADS, THREADS // 2, THREADS // 4)
        count = next((t for t in counts if not length % (t * each)), 0) or next(
            (t for t in counts if not length % t), THREADS
        )
        if not length % count or length >= 16 * count:
            return _bind_tile_of(sch, loops[:known], inner, count, 1 if length % (count * each) else each)
        if each > 1 and length <= count * each // 2:
            outer, several = sch.split(loops[known - 1], [None, count * each // length])
            return _bind_tile_of(sch, [*loops[: known - 1], outer], sch.fuse(several, inner), count, each)
        loops = [*loops[:known], inner]
    elif known or length < MIN_BLOCKS * threads * each:
        each = 1
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    return _bind_tile_of(sch, [], fused, threads, each)


def _bind_tile_of(sch: s_tir.Schedule, outer: list[Any], inner: Any, threads: int, each: int) -> Any:
    """Split a loop into blocks and threads of ``each`` elements; return the thread loop."""
    tile, several, thread = sch.split(inner, [None, each, threads])
    sch.reorder(tile, thread, several)
    sch.unroll(several)
    grid = sch.fuse(*outer, tile) if outer else tile
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def vector_width(sch: s_tir.Schedule, block: Any, extent: Any) -> int:
    """Return the vector length along an innermost loop of ``extent``: a full vector of the narrowest full operand."""
    if not isinstance(extent, int):
        return 1
    last = sch.get(block).iter_vars[-1].var
    written = sch.get(block).writes[0].source
    sizes = [itemsize(written)]
    for load in loads(sch.get(block).body):
        if load.indices and last in variables(load.indices[-1]):
            sizes.append(itemsize(load.source))
    width = min(VECTOR_BYTES // min(sizes), MAX_WIDE_BYTES // max(sizes))
    while width > 1 and extent % width:
        width //= 2
    return max(width, 1)


def _sum_vectors(sch: s_tir.Schedule, block: Any) -> None:
    """Add up vectors of an operand by arithmetic of vectors, as resizing does, also where it is joined with others."""
    several = any(len(loads_of(sch, block, buffer)) > 1 for buffer in reads_of(sch, block))
    last = sch.get(block).iter_vars[-1].var
    if not several or not all(_is_sum(value, last) for value in alternatives(sch.get(block).body.value)):
        raise ScheduleError("no sum of vectors of an operand")
    _move_vectors(sch, block, WIDTH_OF_SUMS)


def _is_sum(value: Any, last: Any) -> bool:
    """Whether there are only sums and products of what is loaded, and of weights that are the same along ``last``."""
    if not loads(value) and last not in variables(value):
        return True
    if isinstance(value, tirx.Add | tirx.Mul):
        return _is_sum(value.a, last) and _is_sum(value.b, last)
    return _is_sum(value.value, last) if isinstance(value, tirx.Cast) else isinstance(value, TensorLoad)


def _copy_vectors(sch: s_tir.Schedule, block: Any) -> None:
    """Move whole vectors: copies, slices, concatenations, gathers, padding."""
    if not is_movement(sch, block):
        raise ScheduleError("no copy")
    _move_vectors(sch, block)


def _move_vectors(sch: s_tir.Schedule, block: Any, most: int = MAX_WIDE_BYTES) -> None:
    loops = _loops(sch, block)
    width = min(vector_width(sch, block, extents(sch, loops)[-1]), most)
    if width == 1:
        raise ScheduleError("rows do not fill vectors")
    check_aligned(sch, [block], width)
    outer, vector = sch.split(loops[-1], [None, width])
    threads = _threads(extents(sch, [*loops[:-1], outer]))
    bind_threads(sch, [*loops[:-1], outer], threads)
    sch.vectorize(vector)


def vectorize(sch: s_tir.Schedule, block: Any, joins: Sequence[Any] = ()) -> Any:
    """Load vectors into registers, as they are or by the blocks ``joins``; compute per element, store vectors.

    Returns the thread loop. Arithmetic stays scalar: CUDA has no vector arithmetic to gain from.
    """
    loops = _loops(sch, block)
    last = extents(sch, loops)[-1]
    width = vector_width(sch, block, last)
    if width == 1:
        raise ScheduleError("no vectors")
    contiguous = [
        buffer
        for buffer in reads_of(sch, block)
        if is_contiguous(sch, block, buffer)
        and all(is_aligned(sch, block, load, width) for load in loads_of(sch, block, buffer))
    ]
    joined = IdentitySet(sch.get(join).writes[0].source for join in joins)
    check_aligned(sch, joins, width)
    if not joined <= IdentitySet(contiguous):
        raise ScheduleError("what is joined is not read by vectors")
    store = sch.cache_write(block, 0, "local")
    loops = list(sch.get_loops(store))
    outer, vector = sch.split(loops[-1], [None, width])
    threads = _threads(extents(sch, [*loops[:-1], outer]))
    thread = bind_threads(sch, [*loops[:-1], outer], threads)
    sch.vectorize(vector)
    sch.compute_at(block, thread, preserve_unit_loops=True)
    held = [
        sch.cache_read(block, read_index(sch, block, buffer), "local") for buffer in contiguous if buffer not in joined
    ]
    for join in joins:
        sch.set_scope(join, 0, "local")
    load_vectors(sch, thread, [*held, *joins])
    unroll(sch, sch.get_loops(block)[2:])
    return thread


def check_aligned(sch: s_tir.Schedule, blocks: Sequence[Any], width: int) -> None:
    """Raise ScheduleError unless the loads of blocks are whole vectors of ``width`` elements."""
    if not all(is_aligned(sch, block, load, width) for block in blocks for load in loads(sch.get(block).body)):
        raise ScheduleError("vectors would cross a boundary")


def load_vectors(sch: s_tir.Schedule, loop: Any, blocks: Iterable[Any]) -> None:
    """Let blocks that move elements to registers load a vector in each step of a loop."""
    for block in blocks:
        sch.compute_at(block, loop, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(block)[-1])


def _vectorize_flat(sch: s_tir.Schedule, block: Any) -> None:
    """Vectorize along the fused innermost axes if the last alone does not fill vectors, such as 7 x 7 in NCHW.

    Operands with the layout of the result are loaded as vectors; others, such as a per-channel bias, per element.
    """
    loops = _loops(sch, block)
    sizes = extents(sch, loops)
    lead = len(sizes)
    while lead and isinstance(sizes[lead - 1], int):
        lead -= 1
    length = math.prod(sizes[lead:])
    same_layout = [b for b in reads_of(sch, block) if _has_result_layout(sch, block, b, sizes[lead:])]
    width = vector_width(sch, block, length)
    if len(sizes) - lead < 2 or not same_layout or width <= vector_width(sch, block, sizes[-1]):
        raise ScheduleError("fusing axes gives no longer vectors")
    held = [sch.cache_read(block, read_index(sch, block, buffer), "local") for buffer in same_layout]
    store = sch.cache_write(block, 0, "local")

    def flatten(*index: Any) -> list[Any]:
        position = index[lead]
        for size, part in zip(sizes[lead + 1 :], index[lead + 1 :], strict=True):
            position = position * size + part
        return [*index[:lead], position]

    index_map = tirx.IndexMap.from_func(flatten, ndim=len(sizes))
    for each in (*held, block):
        sch.transform_layout(each, ("write", 0), index_map)
    for each in (*held, block, store):
        sch.transform_block_layout(each, index_map)
    *outer, inner = list(sch.get_loops(store))
    inner, vector = sch.split(inner, [None, width])
    bind_threads(sch, [*outer, inner], _threads(extents(sch, [*outer, inner])), VECTORS)
    sch.vectorize(vector)
    *_, several, _ = sch.get_loops(store)
    sch.compute_at(block, several, preserve_unit_loops=True)
    load_vectors(sch, several, held)
    unroll(sch, sch.get_loops(block)[3:])


def _has_result_layout(sch: s_tir.Schedule, block: Any, buffer: Any, sizes: list[int]) -> bool:
    """Tell whether a block has one load of a buffer, whose innermost axes are indexed by the innermost loops."""
    found = loads_of(sch, block, buffer)
    iters = [var.var for var in sch.get(block).iter_vars]
    if not found or buffer.scope() != "global" or len(buffer.shape) != len(iters) or is_conditional(sch, block):
        return False
    shape = [int(e) if isinstance(e, tirx.IntImm) else 0 for e in buffer.shape]
    return shape[len(shape) - len(sizes) :] == sizes and all(same_objects(load.indices, iters) for load in found)


def _threads(sizes: list[Any]) -> int:
    """Return the thread block size: smaller for tensors that would not occupy the GPU with large blocks."""
    few = all(isinstance(size, int) for size in sizes) and math.prod(sizes) < 64 * THREADS
    return THREADS // 4 if few else THREADS

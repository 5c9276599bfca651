"""Schedules column reductions: reductions that keep the innermost axis, pooling, and sums of products without a GEMM.

Each thread accumulates a vector of adjacent columns. Many rows, or those of few columns, are split over the threads of
a block, and over blocks: a first kernel writes partial results, a second one reduces them.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from packager.graph.dataflow import known_product
from packager.graph.identity import IdentitySet
from packager.lower.blocks import (
    UNKNOWN,
    blocks,
    extents,
    inline,
    is_movement,
    is_reduction,
    is_spatial,
    kinds,
    loads,
    read_index,
    schedule_of,
    unroll,
    variables,
)
from packager.lower.cuda.column_tiles import MANY, WARP, contiguous_operands, joined_axes, narrow_tile, width_of
from packager.lower.cuda.elementwise import schedule_elementwise
from packager.lower.cuda.padded_rows import multiple_of, pad_rows

_get_realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")

# A block has WARP threads along the columns. The rows are split over one thread per vector element, so that in the end
# each thread can finish one column; this requires vectors of at least MIN_SHARERS elements and at least MANY rows.
MIN_SHARERS = 4
# Threads of a block whose rows are not split.
THREADS = 128
# Pooling windows are unrolled up to this side length.
MAX_UNROLLED = 8
# The most rows of a lookup that a thread loads at once.
MAX_GATHERED = 64
# Blocks that occupy a GPU; with fewer, rows are split over blocks. Threads share what divides the parts.
BLOCKS, MORE_BLOCKS = 1024, 4096
SHARED_PARTS = 8
# Rows that a thread loads at once, best first, if they divide the number of rows.
ROWS = (8, 4, 7, 5, 3, 2)


def schedule_column_reduction(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a reduction and its elementwise epilogue to threads. Raises ScheduleError if the rule does not apply."""
    sch = schedule_of(primfunc)
    inline(sch, _is_inlined)
    reductions = [block for block in blocks(sch) if is_reduction(sch, block)]
    if len(reductions) != 1:
        raise ScheduleError("not a single reduction")
    sch, reduction = _with_whole_rows(sch, reductions[0])
    for block in blocks(sch):
        if is_spatial(sch, block) and _precedes(sch, block, reduction):
            schedule_elementwise(sch, block)
    length, columns = _sizes(sch, reduction)
    width = width_of(sch, reduction, extents(sch, _kept(sch, reduction)[-1:] or [1])[-1])
    blocks_alone = (columns or UNKNOWN * known_product(extents(sch, _kept(sch, reduction)))) // (WARP * width)
    if length and length >= 8 * MANY and blocks_alone < BLOCKS:
        # Threads of single columns have few bytes under way: more of them have fewer rows each.
        at_once, least = (MORE_BLOCKS, MANY // 4) if width == 1 else (BLOCKS, MANY // 2)
        least = least if columns else 4 * MANY  # which is little to write, should there be many columns
        reduction = _split_over_blocks(sch, reduction, length, at_once // max(blocks_alone, 1), least)
        length = extents(sch, [_reduced(sch, reduction)[0]])[0]
    _columns(sch, reduction, length)
    return sch.mod["main"]


def _with_whole_rows(sch: s_tir.Schedule, reduction: Any) -> tuple[s_tir.Schedule, Any]:
    """Return a schedule whose many rows are a multiple of what threads, or blocks, share; and its reduction."""
    loops = _reduced(sch, reduction)
    length, _ = _sizes(sch, reduction)
    if length < MANY or not length % SHARED_PARTS:
        return sch, reduction
    if len(loops) > 1:
        loops = [_merge_rows(sch, reduction)]
    padded = pad_rows(sch, reduction, loops[0], multiple_of(length, SHARED_PARTS))
    return padded, padded.get_sblock(sch.get(reduction).name_hint, func_name="main")


def _merge_rows(sch: s_tir.Schedule, reduction: Any) -> Any:
    """Reduce all axes as one: the extents of images have few divisors, of which their product may have more."""
    found = kinds(sch, reduction)
    sizes = [int(var.dom.extent) if kind == tirx.IterVar.CommReduce else 1 for var, kind in _iters(sch, reduction)]

    def merged(*index: Any) -> list[Any]:
        row: Any = 0
        for place, kind, size in zip(index, found, sizes, strict=True):
            row = row * size + place if kind == tirx.IterVar.CommReduce else row
        return [*(place for place, kind in zip(index, found, strict=True) if kind != tirx.IterVar.CommReduce), row]

    sch.transform_block_layout(reduction, tirx.IndexMap.from_func(merged, ndim=len(found)))
    return sch.get_loops(reduction)[-1]


def _iters(sch: s_tir.Schedule, block: Any) -> list[tuple[Any, int]]:
    return list(zip(sch.get(block).iter_vars, kinds(sch, block), strict=True))


def _is_inlined(sch: s_tir.Schedule, block: Any) -> bool:
    """Inline the epilogue; of the prologue, data movement and values that are used once."""
    consumers = [c for c in sch.get_consumers(block) if is_reduction(sch, c)]
    return not consumers or is_movement(sch, block) or not _overlaps(sch, consumers[0])


def _overlaps(sch: s_tir.Schedule, reduction: Any) -> bool:
    """Tell whether a reduction reads an element several times, as overlapping pooling windows do."""
    iters = sch.get(reduction).iter_vars
    spatial = IdentitySet(v.var for v in iters if v.iter_type == tirx.IterVar.DataPar)
    reduced = IdentitySet(v.var for v in iters if v.iter_type != tirx.IterVar.DataPar)
    used = [variables(index) for load in loads(sch.get(reduction).body) for index in load.indices]
    return any(found & spatial and found & reduced for found in used)


def _precedes(sch: s_tir.Schedule, block: Any, reduction: Any) -> bool:
    names = [sch.get(b).name_hint for b in sch.get_consumers(block)]
    return sch.get(reduction).name_hint in names


def _reduced(sch: s_tir.Schedule, block: Any) -> list[Any]:
    return _loops_of(sch, block, tirx.IterVar.CommReduce)


def _kept(sch: s_tir.Schedule, block: Any) -> list[Any]:
    return _loops_of(sch, block, tirx.IterVar.DataPar)


def _loops_of(sch: s_tir.Schedule, block: Any, kind: int) -> list[Any]:
    """Return the loops of the block variables of a kind, outermost first."""
    values = _get_realize(sch, block).iter_values
    found = IdentitySet()
    for var, value in zip(sch.get(block).iter_vars, values, strict=True):
        if int(var.iter_type) == kind:
            found |= variables(value)
    return [loop for loop in sch.get_loops(block) if sch.get(loop).loop_var in found]


def _sizes(sch: s_tir.Schedule, block: Any) -> tuple[int, int]:
    """Return the length of a reduction and its number of results; 0 if symbolic."""

    def product(sizes: list[Any]) -> int:
        return math.prod(size if isinstance(size, int) else 0 for size in sizes)

    return product(extents(sch, _reduced(sch, block))), product(extents(sch, _kept(sch, block)))


def _split_over_blocks(sch: s_tir.Schedule, reduction: Any, length: int, most: int, least: int) -> Any:
    """Split at least so many rows over at most so many blocks; return the reduction of their partial results."""
    counts = [n for n in range(2, most + 1) if not length % n]
    shared = [n for n in counts if not n % SHARED_PARTS and length // n >= least]
    shared = [n for n in shared if not length // n % SHARED_PARTS] or shared
    found = shared or [n for n in counts if length // n >= MANY]
    # What reduces the parts waits for as many as what makes them, if these are as many as the rows of one.
    parts = max((n for n in found if n <= 2 * math.isqrt(length)), default=min(found, default=1))
    if parts == 1:
        return reduction
    kept, reduced = _kept(sch, reduction), _reduced(sch, reduction)
    sch.reorder(*kept, *reduced)
    fused = sch.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    part, _ = sch.split(fused, [parts, None])
    partial = sch.rfactor(part, 0)
    name = sch.get(reduction).name_hint
    _columns(sch, partial, length // parts)
    return sch.get_sblock(name, func_name="main")


def _columns(sch: s_tir.Schedule, reduction: Any, length: int) -> None:
    consumers = list(sch.get_consumers(reduction))
    partial = any(is_reduction(sch, consumer) for consumer in consumers)
    if consumers and not partial:
        if len(consumers) != 1 or sch.get_consumers(consumers[0]):
            raise ScheduleError("more than one block follows the reduction")
        sch.set_scope(reduction, 0, "local")
        result = sch.cache_write(consumers[0], 0, "local")
        computed = [reduction, consumers[0]]
    else:
        result = sch.cache_write(reduction, 0, "local")
        computed = [reduction]
    loops = list(sch.get_loops(result)) or [sch.add_unit_loop(result)]
    width = width_of(sch, reduction, extents(sch, loops)[-1])
    joined = joined_axes(extents(sch, loops), length)
    axes = extents(sch, loops[-joined:])
    if joined > 1:
        loops = [*loops[:-joined], sch.fuse(*loops[-joined:])]
    last = extents(sch, loops)[-1]
    whole = len([e for e in extents(sch, loops) if e != 1]) <= 1 or (
        isinstance(last, int) and not last % (WARP * width)
    )
    # With fewer columns than a tile, accumulating and finishing would use different numbers of threads.
    fits = not isinstance(last, int) or last >= WARP * width
    shared = (WARP, width) if length >= MANY and whole and fits and width >= MIN_SHARERS else None
    if tile := narrow_tile(extents(sch, loops), length, width, axes) or shared:
        _split_over_threads(sch, computed, loops, width, tile, joined)
        return
    outer, vector = sch.split(loops[-1], [None, width])
    grid, thread = sch.split(sch.fuse(*loops[:-1], outer), [None, THREADS])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    _compute_epilogue(sch, computed[1:], thread)
    sch.compute_at(reduction, thread, preserve_unit_loops=True)
    _accumulate(sch, reduction, 2)


def _accumulate(sch: s_tir.Schedule, reduction: Any, depth: int) -> None:
    """Move the reduction loop outside of the vector loop, and initialize the accumulators in front of it."""
    reduced = _inner(sch, reduction, depth, tirx.IterVar.CommReduce)
    kept = _inner(sch, reduction, depth, tirx.IterVar.DataPar)
    unrolled = reduced
    # Loads of places that are loaded wait for each other, unless all are unrolled.
    is_gathered = any(loads(index) for load in loads(sch.get(reduction).body) for index in load.indices)
    gathered = range(MAX_GATHERED, 1, -1) if is_gathered else ()
    if len(reduced) == 1:
        length = extents(sch, reduced)[0]
        rows = next((n for n in (*gathered, *ROWS) if isinstance(length, int) and not length % n), 1)
        reduced = list(sch.split(reduced[0], [None, rows]))
        unrolled = reduced[1:]
    sch.reorder(*kept[:-1], *reduced, *kept[-1:])
    for buffer in contiguous_operands(sch, reduction):
        load = sch.cache_read(reduction, read_index(sch, reduction, buffer), "local", [reduction])
        sch.compute_at(load, reduced[-1], preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(load)[-1])
    unroll(sch, kept[-1:])
    most = MAX_GATHERED if is_gathered else MAX_UNROLLED
    if all(isinstance(size, int) and size <= most for size in extents(sch, unrolled)):
        unroll(sch, unrolled)
    _decompose_init(sch, reduction, reduced[0])


def _decompose_init(sch: s_tir.Schedule, reduction: Any, loop: Any) -> None:
    """Decompose the initialization out of the reduction loop; if TVM cannot, the first iteration initializes."""
    with contextlib.suppress(ScheduleError):
        sch.decompose_reduction(reduction, loop)


def _compute_epilogue(sch: s_tir.Schedule, epilogue: list[Any], thread: Any) -> None:
    for block in epilogue:
        sch.compute_at(block, thread, preserve_unit_loops=True)
        sch.unroll(sch.get_loops(block)[-1])


def _split_over_threads(
    sch: s_tir.Schedule, computed: list[Any], loops: list[Any], width: int, tile: tuple[int, int], joined: int
) -> None:
    """Split the rows of a tile, of vectors of columns by threads, and reduce their partial results in shared memory.

    The threads of a vector divide its columns: all of them finish some. Columns are of the last ``joined`` axes.
    """
    reduction, (vectors, sharers) = computed[0], tile
    outer, columns = sch.split(loops[-1], [None, vectors * width])
    grid = sch.fuse(*loops[:-1], outer)
    sch.bind(grid, "blockIdx.x")
    kept, reduced = _kept(sch, reduction), _reduced(sch, reduction)
    sch.reorder(*kept, *reduced)
    fused = sch.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    _, sharer = sch.split(fused, [None, sharers])
    partial = sch.rfactor(sharer, 0)
    left = sch.cache_write(partial, 0, "local")
    sch.set_scope(left, 0, "shared")
    turn, row, column = sch.split(columns, [width // sharers, sharers, vectors])
    sch.bind(row, "threadIdx.y")
    sch.bind(column, "threadIdx.x")
    sch.reorder(row, column, turn)
    _compute_epilogue(sch, computed[1:], turn)
    sch.compute_at(reduction, turn, preserve_unit_loops=True)
    _decompose_init(sch, reduction, _inner(sch, reduction, 4, tirx.IterVar.CommReduce)[0])
    sch.compute_at(left, grid, preserve_unit_loops=True)
    share, *others = list(sch.get_loops(left))[1:]
    places, vector = sch.split(sch.fuse(*others[-joined:]) if joined > 1 else others[-1], [None, width])
    sch.reorder(share, *others[:-joined], places, vector)
    sch.bind(share, "threadIdx.y")
    sch.bind(places, "threadIdx.x")
    sch.vectorize(vector)
    sch.compute_at(partial, places, preserve_unit_loops=True)
    _accumulate(sch, partial, len(list(sch.get_loops(left))) - 1)


def _inner(sch: s_tir.Schedule, block: Any, depth: int, kind: int) -> list[Any]:
    """Return the loops of a kind below the outer ``depth`` loops of a block; each block variable has one there."""
    inner = list(sch.get_loops(block))[depth:]
    return [loop for loop, own in zip(inner, kinds(sch, block), strict=True) if own == kind]

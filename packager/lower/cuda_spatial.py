"""Elementwise work, copies and transposes: as many bytes in flight as a GPU can take, 16 at a time where they fit."""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.ir import Call
from tvm.s_tir import ScheduleError
from tvm_ffi import structural_walk

from packager.lower.cuda_blocks import (
    MAX_WIDE_BYTES,
    VECTOR_BYTES,
    attempt,
    extents,
    is_condition,
    is_movement,
    itemsize,
    loads,
    reads_of,
    variables,
)

THREADS = 256
# Elements that a thread takes, a block of threads apart, where they make no vectors.
EACH = 4
# A tile of a transpose: TILE x TILE elements through shared memory, TILE x TILE_ROWS threads.
TILE = 32
TILE_ROWS = 8


def schedule_spatial(sch: s_tir.Schedule, block: Any) -> None:
    """Bind the loops of a block without reductions to threads."""
    attempts = (_transpose, _move_vectors, _vectorise, _one_each)
    if not any(attempt(sch, transform, block) for transform in attempts):
        raise ScheduleError(f"block {sch.get(block).name_hint} cannot be bound to threads")


def _loops(sch: s_tir.Schedule, block: Any) -> list[Any]:
    return list(sch.get_loops(block)) or [sch.add_unit_loop(block)]


def _one_each(sch: s_tir.Schedule, block: Any) -> None:
    loops = _loops(sch, block)
    bind_threads(sch, loops, _threads(extents(sch, loops)), EACH)


def bind_threads(sch: s_tir.Schedule, loops: list[Any], threads: int, each: int = 1) -> Any:
    """Spread nested loops over blocks of threads; return the loop of threads.

    Each takes ``each`` elements where that leaves none over. Extents that only the shape decides stay out of the loops
    that threads run over: what threads divide is then small, which the compiler sees and divides in 32 bits.
    """
    sizes = extents(sch, loops)
    known = len(sizes)
    while known and isinstance(sizes[known - 1], int):
        known -= 1
    length = math.prod(sizes[known:])
    if 0 < known < len(sizes):
        count = next((t for t in (THREADS, THREADS // 2, THREADS // 4) if not length % t), THREADS)
        if not length % count or length >= 16 * count:
            inner = sch.fuse(*loops[known:]) if len(loops) - known > 1 else loops[known]
            if length % (count * each):
                each = 1
            tile, several, thread = sch.split(inner, [None, each, count])
            sch.reorder(tile, thread, several)
            sch.unroll(several)
            grid = sch.fuse(*loops[:known], tile)
            sch.bind(grid, "blockIdx.x")
            sch.bind(thread, "threadIdx.x")
            return thread
    grid, thread = sch.split(sch.fuse(*loops) if len(loops) > 1 else loops[0], [None, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def vector_width(sch: s_tir.Schedule, block: Any, extent: Any) -> int:
    """Return how many elements along an innermost loop of ``extent`` fill a vector of the narrowest full operand."""
    if not isinstance(extent, int):
        return 1
    last = sch.get(block).iter_vars[-1].var.__chandle__()
    written = sch.get(block).writes[0].source
    sizes = [itemsize(written)]
    for load in loads(sch.get(block).body):
        if load.indices and last in variables(load.indices[-1]):
            sizes.append(itemsize(load.source))
    width = min(VECTOR_BYTES // min(sizes), MAX_WIDE_BYTES // max(sizes))
    while width > 1 and extent % width:
        width //= 2
    return max(width, 1)


def _move_vectors(sch: s_tir.Schedule, block: Any) -> None:
    """Move whole vectors: copies, slices, concatenations, gathers, padding."""
    loops = _loops(sch, block)
    width = vector_width(sch, block, extents(sch, loops)[-1])
    if width == 1 or not is_movement(sch, block):
        raise ScheduleError("no vectors to move")
    if not all(_is_aligned(sch, block, load, width) for load in loads(sch.get(block).body)):
        raise ScheduleError("vectors would straddle")
    outer, vector = sch.split(loops[-1], [None, width])
    threads = _threads(extents(sch, [*loops[:-1], outer]))
    bind_threads(sch, [*loops[:-1], outer], threads)
    sch.vectorize(vector)


def _is_aligned(sch: s_tir.Schedule, block: Any, load: Any, width: int) -> bool:
    """Tell whether a load moves along whole aligned vectors with the innermost loop, or not at all with it."""
    last = sch.get(block).iter_vars[-1].var
    handle = last.__chandle__()
    if not any(handle in variables(index) for index in load.indices):
        return True
    *outer, inner = load.indices
    analyzer = sym.Analyzer()
    offset = analyzer.simplify(inner - last)
    length = load.source.shape[-1]
    return (
        all(handle not in variables(index) for index in outer)
        and handle not in variables(offset)
        and (isinstance(offset, tirx.IntImm) and int(offset) % width == 0)
        and (isinstance(length, tirx.IntImm) and int(length) % width == 0)
    )


def _vectorise(sch: s_tir.Schedule, block: Any) -> None:
    """Load whole vectors into registers, compute element by element, store whole vectors.

    Arithmetic stays scalar: the vectors of CUDA C++ have no operators of their own to gain from.
    """
    loops = _loops(sch, block)
    last = extents(sch, loops)[-1]
    width = vector_width(sch, block, last)
    if width == 1:
        raise ScheduleError("no vectors")
    contiguous = [b for b in reads_of(sch, block) if _is_contiguous(sch, block, b)]
    store = sch.cache_write(block, 0, "local")
    loops = list(sch.get_loops(store))
    outer, vector = sch.split(loops[-1], [None, width])
    threads = _threads(extents(sch, [*loops[:-1], outer]))
    thread = bind_threads(sch, [*loops[:-1], outer], threads)
    sch.vectorize(vector)
    sch.compute_at(block, thread, preserve_unit_loops=True)
    for buffer in contiguous:
        load = sch.cache_read(block, _read_index(sch, block, buffer), "local")
        sch.compute_at(load, thread, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(load)[-1])
    for loop in sch.get_loops(block)[2:]:
        sch.unroll(loop)


def _threads(sizes: list[Any]) -> int:
    """Return the size of a thread block: smaller for tensors that would not occupy the GPU with large ones."""
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            return THREADS
        total *= size
    return THREADS if total >= 64 * THREADS else THREADS // 4


def _read_index(sch: s_tir.Schedule, block: Any, buffer: Any) -> int:
    handles = [region.source.__chandle__() for region in sch.get(block).reads]
    return handles.index(buffer.__chandle__())


def _is_contiguous(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    """Tell whether the one place where a block reads a buffer moves along its last axis with the innermost loop."""
    found = [load for load in loads(sch.get(block).body) if load.source.__chandle__() == buffer.__chandle__()]
    last = sch.get(block).iter_vars[-1].var
    regions = [r for r in sch.get(block).reads if r.source.__chandle__() == buffer.__chandle__()]
    if len(regions) != 1 or not found or not regions[0].region or buffer.scope() != "global":
        return False
    *outer, inner = found[0].indices
    same = all(_equal(load.indices, found[0].indices) for load in found)
    return (
        same
        and all(not loads(index) for index in found[0].indices)
        and inner.__chandle__() == last.__chandle__()
        and all(last.__chandle__() not in variables(index) for index in outer)
        and not _is_conditional(sch, block)
    )


def _equal(left: Any, right: Any) -> bool:
    return all(a.__chandle__() == b.__chandle__() or str(a) == str(b) for a, b in zip(left, right, strict=True))


def _is_conditional(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether loads of a block depend on conditions: outside of those they may be out of bounds."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if is_condition(call):
            found.append(call)

    structural_walk(sch.get(block).body, [(Call, visit)])
    return bool(found)


def _transpose(sch: s_tir.Schedule, block: Any) -> None:
    """Read tiles along the axis that is innermost in the operand, write them along the one innermost in the result."""
    buffer, axis = _transposed(sch, block)
    loops = _loops(sch, block)
    if not all(isinstance(e, int) for e in extents(sch, [loops[axis], loops[-1]])):
        raise ScheduleError("TVM allocates no tile that the shape may cut")
    if any(size < TILE // 4 for size in extents(sch, [loops[axis], loops[-1]])):
        raise ScheduleError("too narrow for tiles")
    width = _tile_vector(sch, block, buffer, extents(sch, [loops[axis], loops[-1]]))
    rows, columns = (
        size if isinstance(size, int) and size <= TILE * width else TILE * width
        for size in extents(sch, [loops[axis], loops[-1]])
    )
    row_outer, row = sch.split(loops[axis], [None, rows])
    column_outer, column = sch.split(loops[-1], [None, columns])
    rest = [loop for index, loop in enumerate(loops[:-1]) if index != axis]
    sch.reorder(*rest, row_outer, column_outer, row, column)
    tile = sch.fuse(*rest, row_outer, column_outer)
    sch.bind(tile, "blockIdx.x")
    load = sch.cache_read(block, _read_index(sch, block, buffer), "shared")
    sch.compute_at(load, tile, preserve_unit_loops=True)
    across, along = _tile_loops(sch, load, buffer)
    _bind_tile(sch, across, along, width)
    _bind_tile(sch, row, column, width)
    sch.storage_align(load, 0, axis=len(buffer.shape) - 2, factor=TILE * width, offset=width)


def _tile_loops(sch: s_tir.Schedule, load: Any, buffer: Any) -> tuple[Any, Any]:
    inner = list(sch.get_loops(load))[-len(buffer.shape) :]
    wide = [loop for loop in inner[:-1] if extents(sch, [loop]) != [1]]
    if len(wide) != 1:
        raise ScheduleError("the tile of the operand has not two dimensions")
    sch.reorder(wide[0], inner[-1])
    return wide[0], inner[-1]


def _tile_vector(sch: s_tir.Schedule, block: Any, buffer: Any, sizes: list[Any]) -> int:
    """Return how many elements of a row of a tile a thread moves at once: two of 16 bits, where none is left over."""
    even = all(isinstance(size, int) and size % 2 == 0 for size in sizes)
    return 2 if even and itemsize(buffer) == 2 and is_movement(sch, block) else 1


def _bind_tile(sch: s_tir.Schedule, across: Any, along: Any, width: int) -> None:
    steps, rows = sch.split(across, [None, TILE_ROWS])
    sch.bind(rows, "threadIdx.y")
    columns, vector = sch.split(along, [None, width])
    _, columns = sch.split(columns, [None, TILE])
    sch.bind(columns, "threadIdx.x")
    sch.unroll(steps)
    sch.vectorize(vector)


def _transposed(sch: s_tir.Schedule, block: Any) -> tuple[Any, int]:
    """Return an operand that a block reads along another axis than it writes, and the loop of that axis."""
    iters = [var.var.__chandle__() for var in sch.get(block).iter_vars]
    loops = list(sch.get_loops(block))
    if len(loops) != len(iters) or len(iters) < 2 or _is_conditional(sch, block):
        raise ScheduleError("no transpose")
    for load in loads(sch.get(block).body):
        handles = [index.__chandle__() for index in load.indices]
        if not handles or handles[-1] not in iters[:-1] or iters[-1] not in handles[:-1]:
            continue
        if (
            all(isinstance(index, (tirx.Var, tirx.IntImm)) for index in load.indices)
            and load.source.scope() == "global"
        ):
            return load.source, iters.index(handles[-1])
    raise ScheduleError("no transpose")

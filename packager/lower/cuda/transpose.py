"""Schedules transposes: tiles go through shared memory, so that loads and stores are both coalesced."""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from packager.graph.identity import IdentitySet, position
from packager.lower.blocks import extents, is_conditional, is_movement, itemsize, loads, read_index, variables

# A tile has TILE x TILE elements and TILE x TILE_ROWS threads.
TILE = 32
TILE_ROWS = 8
# Channels that a thread has one after the other, pixels that fill a GPU with such threads, and those of a block.
MOST_CHANNELS, LEAST_PIXELS, NARROW_THREADS = 64, 1 << 15, 256


def transpose(sch: s_tir.Schedule, block: Any) -> None:
    """Read tiles along the innermost axis of the operand, write them along the innermost axis of the result."""
    buffer, axis = _transposed(sch, block)
    loops = sch.get_loops(block)
    sizes = extents(sch, [loops[axis], loops[-1]])
    if not all(isinstance(size, int) for size in sizes):
        raise ScheduleError("TVM cannot allocate a tile that a symbolic shape may cut")
    if min(sizes) < TILE // 4:
        raise ScheduleError("too narrow for tiles")
    width = _tile_vector(sch, block, buffer, sizes)
    rows, columns = (min(size, TILE * width) for size in sizes)
    row_outer, row = sch.split(loops[axis], [None, rows])
    column_outer, column = sch.split(loops[-1], [None, columns])
    rest = [loop for index, loop in enumerate(loops[:-1]) if index != axis]
    sch.reorder(*rest, row_outer, column_outer, row, column)
    tile = sch.fuse(*rest, row_outer, column_outer)
    sch.bind(tile, "blockIdx.x")
    load = sch.cache_read(block, read_index(sch, block, buffer), "shared")
    sch.compute_at(load, tile, preserve_unit_loops=True)
    across, along = _tile_loops(sch, load, buffer)
    _bind_tile(sch, across, along, width)
    _bind_tile(sch, row, column, width)
    sch.storage_align(load, 0, axis=len(buffer.shape) - 2, factor=TILE * width, offset=width)


def transpose_narrow(sch: s_tir.Schedule, block: Any) -> None:
    """Let a thread have all of a few channels, which lie side by side in the operands and far apart in the result.

    Neighboring threads store neighbors; for one channel after the other they load from the same cache lines.
    """
    iters, loops = [var.var for var in sch.get(block).iter_vars], list(sch.get_loops(block))
    sizes = extents(sch, loops)
    if len(loops) != len(iters) or len(iters) < 2 or not all(isinstance(size, int) for size in sizes):
        raise ScheduleError("no transpose of known size")
    channels = _channels(sch, block, iters)
    if not 1 < sizes[channels] <= MOST_CHANNELS or math.prod(sizes) // sizes[channels] < LEAST_PIXELS:
        raise ScheduleError("other than few channels of many pixels")
    loop = loops.pop(channels)
    sch.reorder(*loops, loop)
    pixel = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    tile, thread = sch.split(pixel, [None, NARROW_THREADS])
    sch.bind(tile, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _channels(sch: s_tir.Schedule, block: Any, iters: list[Any]) -> int:
    """Return the axis of the result along which operands are contiguous, each that has it, but not the innermost."""
    last, analyzer = iters[-1], Analyzer()
    for axis in sch.get(block).iter_vars:
        analyzer.bind(axis.var, axis.dom)

    def is_along(index: Any, variable: Any) -> bool:
        moved = structural_map(index, (tirx.Var, lambda each: each + 1 if each.same_as(variable) else each))
        difference = analyzer.simplify(moved - index)
        return isinstance(difference, tirx.IntImm) and int(difference) == 1

    read = [load for load in loads(sch.get(block).body) if load.indices and last in variables(*load.indices)]
    steps = [(load, analyzer.simplify(load.indices[-1])) for load in read]
    found = IdentitySet(axis for axis in iters[:-1] for _, index in steps if is_along(index, axis))
    if len(found) != 1:
        raise ScheduleError("no transpose, or several")
    (channels,) = found
    for load, index in steps:
        if channels in variables(*load.indices) and (not is_along(index, channels) or is_along(index, last)):
            raise ScheduleError("an operand is contiguous along another axis")
    if any(load.source.scope() != "global" for load in read):
        raise ScheduleError("an operand is not in global memory")
    return position(iters, channels)


def _tile_loops(sch: s_tir.Schedule, load: Any, buffer: Any) -> tuple[Any, Any]:
    inner = list(sch.get_loops(load))[-len(buffer.shape) :]
    wide = [loop for loop in inner[:-1] if extents(sch, [loop]) != [1]]
    if len(wide) != 1:
        raise ScheduleError("the tile of the operand is not two-dimensional")
    sch.reorder(wide[0], inner[-1])
    return wide[0], inner[-1]


def _tile_vector(sch: s_tir.Schedule, block: Any, buffer: Any, sizes: list[int]) -> int:
    """Return the vector length of a tile row: 2 for 16-bit elements if it divides the row, else 1."""
    return 2 if not any(size % 2 for size in sizes) and itemsize(buffer) == 2 and is_movement(sch, block) else 1


def _bind_tile(sch: s_tir.Schedule, across: Any, along: Any, width: int) -> None:
    steps, rows = sch.split(across, [None, TILE_ROWS])
    sch.bind(rows, "threadIdx.y")
    columns, vector = sch.split(along, [None, width])
    _, columns = sch.split(columns, [None, TILE])
    sch.bind(columns, "threadIdx.x")
    sch.unroll(steps)
    sch.vectorize(vector)


def _transposed(sch: s_tir.Schedule, block: Any) -> tuple[Any, int]:
    """Return an operand whose innermost axis is not that of the result, and the loop of that axis."""
    iters = [var.var for var in sch.get(block).iter_vars]
    loops = list(sch.get_loops(block))
    if len(loops) != len(iters) or len(iters) < 2 or is_conditional(sch, block):
        raise ScheduleError("no transpose")
    for load in loads(sch.get(block).body):
        if not load.indices:
            continue
        *outer, inner = load.indices
        if inner not in IdentitySet(iters[:-1]) or iters[-1] not in IdentitySet(outer):
            continue
        plain = all(isinstance(index, (tirx.Var, tirx.IntImm)) for index in load.indices)
        if plain and load.source.scope() == "global":
            return load.source, position(iters, inner)
    raise ScheduleError("no transpose")

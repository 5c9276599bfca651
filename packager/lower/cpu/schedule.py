"""CPU loop schedules: inline cheap producers, tile and vectorize reductions, parallelize the outer loop.

One generic rule for every PrimFunc, chosen by the shape of its blocks, not by its name. A transformation that does not
apply to a function is skipped; the result is the same either way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.sym import Analyzer

from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import (
    attempt,
    blocks,
    is_condition,
    is_reduction,
    is_spatial,
    kinds,
    schedule_of,
    unroll,
    variables,
)
from packager.lower.cpu.pack_weights import VECTOR_AXIS, VECTORS
from packager.lower.cpu.row_reduction import reduce_rows
from packager.lower.cpu.spatial import schedule_spatial

# Elements of a vector loop: two 256-bit registers of floats.
VECTOR = 16
MIN_VECTOR = 4
# Rows of a register tile, best first: rows x 2 accumulators, the weights and a broadcast fit 16 registers (7: almost).
PACKED_ROWS = (6, 5, 4, 7, 3, 2)
MIN_ROWS = 4
GUARDED_ROWS = (6, 5, 7)
# TVM fails to simplify the indices of loops that are fused over extents such as ``n // 16 - 3``.
ERRORS = (ScheduleError, tvm.error.InternalError)


def schedule(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled copy of an S-TIR PrimFunc; its parameters stay the same."""
    sch = schedule_of(primfunc)
    _inline(sch)
    for block in blocks(sch):
        if is_reduction(sch, block) and not attempt(sch, reduce_rows, block, ERRORS):
            attempt(sch, _tile_reduction, block, ERRORS)
    for block in blocks(sch):
        if _is_scheduled(sch, block) or (is_spatial(sch, block) and attempt(sch, schedule_spatial, block, ERRORS)):
            continue
        if not attempt(sch, _vectorize, block, ERRORS):
            attempt(sch, partial(_vectorize, fused=False), block, ERRORS)
    return sch.mod["main"]


def _is_scheduled(sch: s_tir.Schedule, block: Any) -> bool:
    return any(sch.get(loop).kind != tirx.ForKind.SERIAL for loop in sch.get_loops(block))


def _inline(sch: s_tir.Schedule) -> None:
    """Inline blocks with one elementwise consumer, and pure data movement into any single consumer.

    What calls functions, such as a sigmoid, is not inlined where that computes each value several times.
    """
    for block in blocks(sch):
        if not is_spatial(sch, block) or not sch.get_consumers(block):
            continue
        consumers = list(sch.get_consumers(block))
        if len(consumers) != 1 or (_calls_functions(sch, block) and _broadcasts(sch, block, consumers[0])):
            continue
        if is_spatial(sch, consumers[0]) or _is_movement(sch, block):
            attempt(sch, lambda s, b: s.compute_inline(b), block, ScheduleError)


def _calls_functions(sch: s_tir.Schedule, block: Any) -> bool:
    calls = nodes_of(sch.get(block).body, tvm.ir.Call)
    return not all(map(is_condition, calls))


def _is_movement(sch: s_tir.Schedule, block: Any) -> bool:
    body = sch.get(block).body
    return isinstance(body, tirx.BufferStore) and isinstance(body.value, tvm.ir.TensorLoad)


def _extent(sch: s_tir.Schedule, loop: Any) -> int | None:
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def _divisor(extent: int | None, most: int) -> int:
    """Return the largest divisor of a static extent that is at most ``most``; 1 if it is symbolic."""
    if not extent:  # symbolic, or empty
        return 1
    return next(size for size in range(min(most, extent), 0, -1) if extent % size == 0)


def _vectorize(sch: s_tir.Schedule, block: Any, *, fused: bool = True) -> None:
    """Parallelize the outer loops of a spatial nest, ``fused`` or the first alone, and vectorize its innermost loop."""
    loops = list(sch.get_loops(block))
    spatial = is_spatial(sch, block)
    if not spatial:
        outer = loops[: next(i for i, kind in enumerate(kinds(sch, block)) if kind != tirx.IterVar.DataPar)]
    elif not loops:  # a scalar
        return
    else:
        width = _divisor(_extent(sch, loops[-1]), VECTOR)
        if width > 1:
            last, vector = sch.split(loops[-1], [None, width])
            sch.vectorize(vector)
            loops[-1:] = [last]
        outer = loops
    reduced = [] if spatial else loops[len(outer) :]
    if outer:
        sch.parallel(sch.fuse(*outer) if fused and len(outer) > 1 else outer[0])
    if any(_extent(sch, loop) is None for loop in reduced):
        sch.decompose_reduction(
            block, reduced[0]
        )  # a run-time extent of 0 leaves out the loops, not the initialization


@dataclass(frozen=True)
class _Tile:
    """A register tile: ``width`` elements along the vector axis times ``rows`` along the row axis, if there is one.

    ``guarded``: ``rows`` does not divide its axis.
    """

    vector_axis: int
    width: int
    row_axis: int | None
    rows: int
    guarded: bool


def _tile_reduction(sch: s_tir.Schedule, block: Any) -> None:
    """Register-tile a reduction with spatial loops (matmul, conv, pooling).

    Loops become (outer spatial..., reduction..., rows, vector); the tile of rows x vector accumulates in registers,
    and an elementwise consumer of the result is computed per tile.
    """
    loops = list(sch.get_loops(block))
    found = kinds(sch, block)
    if len(found) != len(loops):
        raise ScheduleError("loops and block variables do not correspond")
    spatial = [loop for loop, kind in zip(loops, found, strict=True) if kind == tirx.IterVar.DataPar]
    reduction = [loop for loop, kind in zip(loops, found, strict=True) if kind == tirx.IterVar.CommReduce]
    if not spatial or len(spatial) + len(reduction) != len(loops):
        raise ScheduleError("no spatial loop to vectorize")
    tile = _choose_tile(sch, block, spatial)
    epilogue = _epilogue(sch, block)
    if epilogue is None:
        epilogue = sch.cache_write(block, 0, "local")
    else:
        sch.set_scope(block, 0, "local")
    if tile.vector_axis != len(spatial) - 1:  # vectors must be contiguous among the accumulators too
        axis = tile.vector_axis
        sch.transform_layout(block, ("write", 0), lambda *i: (*i[:axis], *i[axis + 1 :], i[axis]))
    outer = list(spatial)
    outer[tile.vector_axis], vector = sch.split(spatial[tile.vector_axis], [None, tile.width])
    inner = [vector]
    if tile.row_axis is not None and tile.rows > 1:
        outer[tile.row_axis], row = sch.split(spatial[tile.row_axis], [None, tile.rows])
        inner.insert(0, row)
    sch.reorder(*outer, *reduction, *inner)
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.reverse_compute_at(epilogue, fused)
    sch.vectorize(vector)
    if len(inner) > 1:
        sch.unroll(inner[0])
    _schedule_epilogue(sch, list(sch.get_loops(epilogue))[1:], tile)
    sch.parallel(fused)
    # Last, because the initialization copies the loops as they are now.
    sch.decompose_reduction(block, reduction[0])


def _schedule_epilogue(sch: s_tir.Schedule, loops: list[Any], tile: _Tile) -> None:
    """Vectorize the loops that write a tile to memory, and unroll them.

    Guarded rows stay loops: unrolled, each element would test its own index, which costs LLVM seconds with symbolic
    extents.
    """
    rows_innermost = tile.row_axis is not None and tile.row_axis > tile.vector_axis
    if loops and not (tile.guarded and rows_innermost):
        sch.vectorize(loops[-1])
    if not tile.guarded:
        unroll(sch, loops[:-1])


def _choose_tile(sch: s_tir.Schedule, block: Any, spatial: list[Any]) -> _Tile:
    annotations = sch.get(block).annotations
    if VECTOR_AXIS in annotations:  # the weights are packed along this axis
        vector_axis = int(annotations[VECTOR_AXIS])
        columns = _extent(sch, spatial[vector_axis]) or 0
        width = next(vector for vector in VECTORS if columns % vector == 0)
        row_axis = next((axis for axis in range(len(spatial) - 1, -1, -1) if axis != vector_axis), None)
        if row_axis is None:
            return _Tile(vector_axis, width, None, 1, guarded=False)
        extent = _extent(sch, spatial[row_axis])
        # LLVM unswitches each guard out of each reduction loop: seconds for a convolution of symbolic width.
        nested = kinds(sch, block).count(tirx.IterVar.CommReduce) > 1
        rows = 1 if extent is None and nested else _rows(extent)
        return _Tile(vector_axis, width, row_axis, rows, guarded=extent is None or extent % rows != 0)
    width = _divisor(_extent(sch, spatial[-1]), VECTOR)
    if width < MIN_VECTOR:
        raise ScheduleError("no inner spatial loop to vectorize")
    row_axis = _row_axis(sch, block)
    rows = _divisor(_extent(sch, spatial[row_axis]), max(PACKED_ROWS)) if row_axis is not None else 1
    return _Tile(len(spatial) - 1, width, row_axis, rows, guarded=False)


def _rows(extent: int | None) -> int:
    """Return how many rows of a packed computation share each vector of weights.

    A tile that does not divide the extent needs guards; used only if the extent is symbolic or has small divisors only.
    """
    if extent is None:
        return MIN_ROWS
    exact = next((rows for rows in PACKED_ROWS if extent % rows == 0), 1)
    if exact >= MIN_ROWS or extent < MIN_ROWS:
        return exact
    return min(GUARDED_ROWS, key=lambda rows: -extent % rows)


def _epilogue(sch: s_tir.Schedule, block: Any) -> Any | None:
    """Return the only consumer of a reduction if it is elementwise over the same shape, else None."""
    consumers = list(sch.get_consumers(block))
    if not consumers:
        return None
    if len(consumers) != 1 or not is_spatial(sch, consumers[0]):
        raise ScheduleError("the result has several consumers, or a reduction as its consumer")
    return None if _broadcasts(sch, block, consumers[0]) else consumers[0]


def _broadcasts(sch: s_tir.Schedule, block: Any, consumer: Any) -> bool:
    """Tell whether a consumer reads each value of a block several times: it has more elements."""
    own, others = (math.prod(sch.get(one).writes[0].source.shape) for one in (block, consumer))
    return bool(Analyzer().can_prove(others > own))


def _row_axis(sch: s_tir.Schedule, block: Any) -> int | None:
    """Return the innermost spatial axis that no vector load depends on: its iterations reuse the loaded vector."""
    spatial = [var.var for var in sch.get(block).iter_vars if var.iter_type == tirx.IterVar.DataPar]
    used_by_vector_loads = IdentitySet()
    for region in sch.get(block).reads:
        found = variables(*(axis.min for axis in region.region))
        if spatial[-1] in found:
            used_by_vector_loads |= found
    return next((i for i in range(len(spatial) - 2, -1, -1) if spatial[i] not in used_by_vector_loads), None)

"""Loops of blocks without a reduction: a long contiguous run innermost, what is outside of it in parallel.

Indices of the outer loops, such as what a gather reads, are computed once for a run. Neighboring loops are one run if
all loads and the store step through them as through one, whatever the extents: the 7 x 7 of an image are 49 elements.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tvm
from tvm import s_tir, tirx

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import extents, is_conditional

# Elements of a vector loop, best first: two 256-bit registers of floats, and one.
WIDTHS = (16, 8)
MAX_WIDTH = 16
# The most elements of a run that one iteration of the parallel loop handles.
MAX_RUN = 1024
# The fewest elements that are worth a loop of their own.
MIN_RUN = 64


def schedule_spatial(sch: s_tir.Schedule, block: Any) -> None:
    """Parallelize the outer loops of a spatial nest, and vectorize a run of the inner ones, unless LLVM has to.

    Raises ScheduleError.
    """
    loops = list(sch.get_loops(block))
    if not loops:  # a scalar
        return
    first = _start_of_run(sch.get(block), extents(sch, loops))
    outer, inner = loops[:first], loops[first:]
    run = sch.fuse(*inner) if len(inner) > 1 else inner[0]
    (extent,) = extents(sch, [run])
    if isinstance(extent, int):
        width = _width(extent, conditional=is_conditional(sch, block))
        size = _divisor(extent // width, MAX_RUN // width) * width
        if MIN_RUN <= size < extent:
            piece, run = sch.split(run, [None, size])
            outer.append(piece)
        if width > 1:
            run, vector = sch.split(run, [None, width])
            sch.vectorize(vector)
    if not outer:
        outer.append(run)
    sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])


def _width(extent: int, *, conditional: bool) -> int:
    """Return how many elements a vector loop has; 1 leaves the loop to LLVM, which knows what to do with its end.

    TVM makes scalars of a vector of conditions. LLVM does not.
    """
    if conditional:
        return 1
    return next((width for width in WIDTHS if extent % width == 0), 1 if extent > MAX_WIDTH else max(extent, 1))


def _divisor(extent: int, most: int) -> int:
    return next((size for size in range(min(max(most, 1), extent), 0, -1) if extent % size == 0), 1)


def _start_of_run(block: Any, counts: list[Any]) -> int:
    """Return the number of the first loop of the innermost run."""
    axes = [var.var for var in block.iter_vars]
    if len(axes) != len(counts) or not isinstance(block.body, tirx.BufferStore):
        return max(len(counts) - 1, 0)
    accesses = [(load.source, list(load.indices)) for load in nodes_of(block.body, tvm.ir.TensorLoad)]
    accesses.append((block.writes[0].source, list(block.body.indices)))
    used = nodes_of(block.body, tirx.Var)
    first = len(axes) - 1
    while first > 0 and isinstance(counts[first], int):
        if not _are_one(axes[first - 1], axes[first], counts[first], accesses, used):
            break
        first -= 1
    return first


def _are_one(outer: Any, inner: Any, count: int, accesses: list[tuple[Any, list[Any]]], used: list[Any]) -> bool:
    """Whether two axes, the inner one of so many elements, are used as neighboring indices of whole axes only."""
    together = 0
    for buffer, indices in accesses:
        for place, (left, right) in enumerate(pairwise(indices)):
            if outer.same_as(left) and inner.same_as(right):
                extent = buffer.shape[place + 1]
                if not isinstance(extent, tirx.IntImm) or int(extent) != count:
                    return False
                together += 1
    return all(sum(axis.same_as(variable) for variable in used) == together for axis in (outer, inner))

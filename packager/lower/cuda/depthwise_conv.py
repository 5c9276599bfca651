"""Schedules depthwise convolutions in NHWC.

A thread computes a few adjacent positions of one vector of channels: a loaded row segment serves several windows, and
a row of weights is held in registers; of longer rows, 33 frames of speech, a part is. A block covers adjacent rows,
which share its L1 cache; its weights are staged in shared memory, channels innermost. How many positions a thread
computes and how large a block is, is what the GPU's multiprocessors are all busy with: images are small in the deeper
half of a network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.sym import detect_linear_equation

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
# The most positions along a row that a thread computes; fewer of long rows, and of windows whose rows are unrolled:
# these wait for memory, and registers that a thread does not hold are other warps'.
POSITIONS = 8
FEW_POSITIONS = 4
# Threads along a row, and, at least if there are as many and at most, in a block.
ACROSS = 8
THREADS = (128, 256)
# Blocks of fewer threads leave multiprocessors idle, those of more have too few registers.
FEWEST_THREADS, MOST_THREADS = 64, 512
# Longer rows are long; the longest part of one whose taps are unrolled, and the largest window whose rows are. Of 21 to
# 63 taps of 256 to 512 channels parts of 17 took 0.44 to 0.74 of what taps one by one took, those of 11 and eight
# positions 0.58 to 0.81 (H200).
LONG_ROW = 11
LONGEST_PART = 17
UNROLLED = 9
# Shared memory for the weights of a block, in bytes.
STAGED_BYTES = 32768
# Multiprocessors of a large GPU, warps that each issues instructions of at a time, and threads of one.
MULTIPROCESSORS = 132
ISSUED = 4
WARP = 32
# Cycles that a warp takes for a multiplication, the conversion of a half, and the load of a vector from the L1 cache.
MULTIPLY, CONVERT, LOAD = 1, 2, 4


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
    window = _window(sch, reduction, image)
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
    grid, thread = _bind(sch, result, itemsize(image), window)
    for block in after:
        sch.compute_at(block, thread, preserve_unit_loops=True)
        unroll(sch, list(sch.get_loops(block))[2:])
    _compute(sch, reduction, thread, pad, held, window)
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
    if math.prod(sizes[4:]) * VECTOR_BYTES > STAGED_BYTES:
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


@dataclass(frozen=True)
class _Window:
    """Rows and columns of a window, and how far it moves along a row."""

    rows: int
    columns: int
    stride: int

    @property
    def is_unrolled(self) -> bool:
        """Whether its rows are, and not its columns alone."""
        return self.rows * self.columns <= UNROLLED

    @property
    def taps(self) -> int:
        """Columns that share a loaded segment: a whole row, or a part of a longer one, of about the same length."""
        return -(-self.columns // -(-self.columns // LONGEST_PART))

    @property
    def lanes(self) -> int:
        """The most vectors of channels whose weights fit in shared memory."""
        return min(LANES, STAGED_BYTES // (self.rows * self.columns * VECTOR_BYTES))

    def positions(self, width: int, vectors: int, vector: int) -> int:
        """Return how many positions of a row of ``width`` a thread computes, ``vectors`` being those of the result.

        A cost model: cycles of a warp, times the warps that share an issue slot; one takes as long as none.
        """

        def cycles(positions: int) -> float:
            segment = -(-self.columns // self.taps) * ((positions - 1) * self.stride + self.taps)
            row = positions * self.columns * vector * MULTIPLY
            row += (segment + self.columns) * (vector * CONVERT + LOAD)
            warps = vectors / positions / WARP
            return self.rows * row * max(warps / (MULTIPROCESSORS * ISSUED), 1.0)

        most = FEW_POSITIONS if self.is_unrolled or self.columns > LONG_ROW else POSITIONS
        return min((p for p in range(1, most + 1) if not width % p), key=cycles)


def _window(sch: s_tir.Schedule, reduction: Any, image: Any) -> _Window:
    """Return the window of a convolution of ``image``; its stride is the factor of the column in the image's index."""
    iters = sch.get(reduction).iter_vars
    kept = [v.var for v in iters if v.iter_type == tirx.IterVar.DataPar]
    rows, columns, *_ = (int(v.dom.extent) for v in iters if v.iter_type == tirx.IterVar.CommReduce)
    (load,) = loads_of(sch, reduction, image)
    found = [detect_linear_equation(index, [kept[2]]) for index in load.indices if kept[2] in variables(index)]
    stride = found[0][0] if len(found) == 1 and found[0] else None
    if not isinstance(stride, tirx.IntImm):
        raise ScheduleError("windows do not move by a fixed step")
    return _Window(rows, columns, int(stride))


def _channels_last(sch: s_tir.Schedule, held: Any, reduction: Any) -> None:
    """Make channels the innermost axis of the staged weights."""
    last = [v.var for v in sch.get(reduction).iter_vars if v.iter_type == tirx.IterVar.DataPar][-1]
    buffer = sch.get(held).writes[0].source
    (load,) = loads_of(sch, reduction, buffer)
    axis = position(load.indices, last)

    def to_layout(*index: Any) -> list[Any]:
        return [*index[:axis], *index[axis + 1 :], index[axis]]

    sch.transform_layout(held, ("write", 0), tirx.IndexMap.from_func(to_layout, ndim=len(buffer.shape)))


def _bind(sch: s_tir.Schedule, result: Any, size: int, window: _Window) -> tuple[Any, Any]:
    """Tile the result and store it as vectors; return the loops of blocks and of threads."""
    loops = list(sch.get_loops(result))
    if len(loops) != 4:
        raise ScheduleError("the result's axes differ from the convolution's")
    batch, row, column, channel = loops
    images, height, width, channels = extents(sch, loops)
    vector = VECTOR_BYTES // size
    if channels % vector:
        raise ScheduleError("channels do not fill vectors")
    vectors = (images if isinstance(images, int) else 1) * height * width * channels // vector
    positions = window.positions(width, vectors, vector)
    threads = min(max(vectors // positions // (2 * MULTIPROCESSORS), THREADS[0]), THREADS[1])
    lanes = _divisor(channels // vector, window.lanes)
    lanes, across, down = _block(lanes, width // positions, height, threads)
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


def _block(lanes: int, across: int, down: int, threads: int) -> tuple[int, int, int]:
    """Return how many vectors of channels, threads along a row, and rows a block has, which divide those of the image.

    A row whose width has no such divisor is whole: images of 299 pixels have rows of 37 and 19.
    """
    row = _divisor(across, ACROSS)
    rows = _divisor(down, max(threads // (lanes * row), 1))
    if lanes * row * rows >= FEWEST_THREADS:
        return lanes, row, rows
    wider = [
        (few, more, _divisor(down, max(threads // (few * more), 1)))
        for few in range(lanes, 0, -1)
        for more in range(row, across + 1)
        if not lanes % few and not across % more
    ]
    fits = [block for block in wider if FEWEST_THREADS <= math.prod(block) <= MOST_THREADS]
    return fits[0] if fits else (lanes, row, rows)


def _divisor(number: int, most: int) -> int:
    return max(d for d in range(1, most + 1) if not number % d)


def _compute(sch: s_tir.Schedule, reduction: Any, thread: Any, pad: Any, held: Any, window: _Window) -> None:
    """Accumulate a window by rows, or parts of rows, each with its part of the image and its weights in registers."""
    sch.compute_at(reduction, thread, preserve_unit_loops=True)
    inner = list(sch.get_loops(reduction))[2:]
    batch, row, column, channel, down, along, *others = inner
    part, tap = sch.split(along, [None, window.taps])
    sch.reorder(batch, row, down, part, tap, *others, column, channel)
    staged = sch.cache_read(reduction, read_index(sch, reduction, sch.get(held).writes[0].source), "local")
    for operand in (pad, staged):
        _load(sch, operand, part)
    unroll(sch, (*((down, part) if window.is_unrolled else ()), tap, *others, column, channel))
    sch.decompose_reduction(reduction, down)


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
    sch.storage_align(held, 0, -2, VECTOR_BYTES, VECTOR_BYTES // 2)  # rows of it start in other banks
    times, thread = sch.split(sch.fuse(*list(sch.get_loops(held))[1:]), [None, threads])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(times)  # so that a thread waits once for all that it loads

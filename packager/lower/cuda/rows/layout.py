"""Choose how the rows of a reduction are distributed over threads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx.buffer import is_buffer_var

from packager.graph.dataflow import known_product
from packager.graph.identity import IdentitySet, same_objects
from packager.lower.blocks import MAX_WIDE_BYTES, VECTOR_BYTES, extents, itemsize, loads, variables

WARP = 32
MIN_THREADS = 4
MAX_THREADS = 1024
# The most elements of a row that a thread holds in registers per operand. A single warp handles rows of up to 32 times
# that, without barriers.
MAX_HELD = 32
# The largest block that leaves room on an SM for others, which load while it computes.
SEVERAL_THREADS = 512
# The largest row in shared memory that leaves room for two others.
STAGED_BYTES = 72 * 1024
BLOCK_THREADS = 128
# Smaller blocks leave SMs idle: there are at most 32 on one.
FEW_THREADS = 64
# Rows that fill a GPU with one warp each. Fewer rows, of symbolic length, get LONG_THREADS each.
MANY_ROWS = 4096
LONG_THREADS = 512
# The minimum number of elements per thread of a short row.
SHORT = 4


@dataclass(frozen=True)
class Rows:
    """Layout of a row on threads: ``steps`` x ``threads`` vectors of ``width`` elements; 0 steps: not in registers.

    The first ``lead`` axes of a block are rows, the next ``trail`` run along a row. ``rows`` rows share a thread block.
    ``exact``: the vectors fill all threads in all steps; otherwise the last step is guarded. ``staged``: a row is too
    long for registers and is held in shared memory. ``apart``: the last axis of rows is tiled by itself, with a guard.
    """

    lead: int
    trail: int
    width: int
    threads: int
    steps: int
    rows: int
    exact: bool = False
    staged: bool = False
    apart: bool = False

    def split(self, *index: Any) -> list[Any]:
        """Return the index of an element with the position in the row split in loop order."""
        *outer, position = index
        if self.exact:
            return self.thread_index(*index)
        return [*outer, position // self.width, position % self.width] if self.width > 1 else [*index]

    def thread_index(self, *index: Any) -> list[Any]:
        """Return the index of an element with the position in the row split into step, thread and vector element."""
        *outer, position = index
        span = self.threads * self.width
        return [*outer, position // span, position % span // self.width, position % self.width]

    @property
    def inner(self) -> int:
        """The number of loops along a row."""
        if not self.steps:
            return self.trail
        return 3 if self.exact else 1 + (self.width > 1)


def lay_out_rows(sch: s_tir.Schedule, reduction: Any) -> Rows:
    """Return the row layout of a reduction block.

    Raises ScheduleError if it does not reduce along the last axes of all operands, or if rows are too short.
    """
    return _sharing_blocks(sch, reduction, _one_row(sch, reduction))


def _one_row(sch: s_tir.Schedule, reduction: Any) -> Rows:
    loops = list(sch.get_loops(reduction))
    kinds = [int(var.iter_type) for var in sch.get(reduction).iter_vars]
    trail = sum(kind == tirx.IterVar.CommReduce for kind in kinds)
    lead = len(kinds) - trail
    if len(loops) != len(kinds) or kinds != sorted(kinds, key=lambda k: k == tirx.IterVar.CommReduce):
        raise ScheduleError("the reduction is not along the last axes")
    summed = [var.var for var in sch.get(reduction).iter_vars[lead:]]
    moving = [load for load in loads(sch.get(reduction).body) if _uses(load, summed)]
    if extents(sch, loops)[-trail:] == [1] * trail:
        raise ScheduleError("nothing to reduce")
    if not moving or not all(same_objects(load.indices[-trail:], summed) for load in moving):
        raise ScheduleError("the operand is not contiguous along the reduction")
    sizes = extents(sch, loops)
    long = Rows(lead, trail, 1, MAX_THREADS // 2, 0, 1)
    if trail != 1 or not isinstance(sizes[-1], int):
        if all(isinstance(e, int) for e in sizes[lead:]):
            return _short(long, sizes[lead:])
        many = not all(isinstance(e, int) for e in sizes[:lead]) or math.prod(sizes[:lead]) >= MANY_ROWS
        return replace(long, threads=WARP, rows=BLOCK_THREADS // WARP) if many else replace(long, threads=LONG_THREADS)
    return _in_registers(sch, long, sizes[-1])


def _uses(load: Any, found: list[Any]) -> bool:
    return bool(variables(*load.indices) & IdentitySet(found))


def _sharing_blocks(sch: s_tir.Schedule, reduction: Any, rows: Rows) -> Rows:
    """Set the rows per block to a divisor of their number, unless rows are a single axis, which can be guarded.

    Of three axes that could not be merged, a divisor of the last one: TVM does not know quotients of others as affine.
    That axis is tiled apart, and guarded, where its divisors leave blocks of few threads.
    """
    leads = [e for e in extents(sch, list(sch.get_loops(reduction))[: rows.lead]) if e != 1]
    if len(leads) <= 1:
        return rows
    last = len(leads) > 2
    known = known_product(leads[-1 if last else 0 :])
    divisors = [count for count in range(1, MAX_THREADS // rows.threads + 1) if known % count == 0]
    count = max(each for each in divisors if each <= rows.rows)
    if count < rows.rows and count * rows.threads < FEW_THREADS:
        larger = [each for each in divisors if each * rows.threads >= FEW_THREADS]
        if larger:
            return replace(rows, rows=larger[0])
        if last and not (isinstance(leads[-1], int) and leads[-1] < rows.rows):
            return replace(rows, apart=True)
    return replace(rows, rows=count)


def _short(long: Rows, sizes: list[Any]) -> Rows:
    length = math.prod(sizes)
    if length > WARP * MAX_HELD:
        return long
    threads = WARP
    while threads > 4 and length <= threads * SHORT:
        threads //= 2
    return Rows(long.lead, long.trail, 1, threads, 0, BLOCK_THREADS // threads)


def _in_registers(sch: s_tir.Schedule, long: Rows, length: int) -> Rows:
    sizes = [itemsize(b) for b in sch.mod["main"].params if _extents_of(b)[-1:] == [length]]
    width = min(VECTOR_BYTES // min(sizes, default=4), MAX_WIDE_BYTES // max(sizes, default=4))
    while length % width or (width > 1 and length // width < MIN_THREADS - 1):
        width //= 2
    vectors = length // width
    if vectors <= WARP:
        threads = 1
        while threads < vectors:
            threads *= 2
        if threads < MIN_THREADS:
            raise ScheduleError("rows are too short to split over threads")
        return Rows(long.lead, 1, width, threads, 1, BLOCK_THREADS // threads, exact=threads == vectors)
    # Rows of several warps use barriers, which out-of-range rows must not skip.
    alone = BLOCK_THREADS // WARP
    if not vectors % WARP and length <= WARP * MAX_HELD:
        return Rows(long.lead, 1, width, WARP, vectors // WARP, alone, exact=True)
    for most_threads, most in ((SEVERAL_THREADS, MAX_HELD // 2), (SEVERAL_THREADS, MAX_HELD), (MAX_THREADS, MAX_HELD)):
        for threads in range(2 * WARP, most_threads + 1, WARP):
            if not vectors % threads and vectors // threads * width <= most:
                return Rows(long.lead, 1, width, threads, vectors // threads, 1, exact=True)
    if vectors <= WARP * (MAX_HELD // width):
        return Rows(long.lead, 1, width, WARP, -(-vectors // WARP), alone)
    if length > SEVERAL_THREADS * MAX_HELD // 2 and length * max(sizes, default=4) <= STAGED_BYTES:
        return Rows(long.lead, 1, width, SEVERAL_THREADS, 0, 1, staged=True)
    for most_threads, most in ((SEVERAL_THREADS, MAX_HELD // 2), (MAX_THREADS, MAX_HELD)):
        steps = -(-vectors // most_threads)
        if steps * width <= most:
            return Rows(long.lead, 1, width, -(-vectors // (steps * WARP)) * WARP, steps, 1)
    return long


def _extents_of(buffer: Any) -> list[Any]:
    """Return the extents of a parameter, integers if static; empty for a scalar."""
    shape = buffer.shape if is_buffer_var(buffer) else ()
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in shape]

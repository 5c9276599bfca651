"""Lower cumulative sums and products for GPUs: a block of threads scans a row along the last axis, or columns.

In each of log2(n) steps an element of a row combines what it has with that of the element 1, 2, 4 ... before it (Hillis
and Steele 1986, "Data Parallel Algorithms"), from one half of shared memory to the other. Rows that are longer than a
block has threads are scanned in chunks, each of which begins with the total of those before it.

Along another axis a block has 32 columns, which lie side by side, and each thread adds up a part of one, then scans it
from the total of the parts before.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, cast, ceil_div, emit, int64, local, one_thread, shared
from packager.lower.legalize.cumulative import WHOLE, Scan, read_scan, scan_by_reductions

# Elements of a chunk: the threads of a block.
CHUNK = 1024
# Chunks of a row beyond which other blocks wait for too long.
MOST_CHUNKS = 32
# Columns of a block, as many as a warp has threads; the parts of a column; so few columns that most threads would idle.
LANES, PARTS, FEW = 32, 32, 8


def scan_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``cumsum`` and ``cumprod``; those of few elements, of few columns or very long, by reductions."""
    (data, scan), name = read_scan(builder, call), call.op.name.removeprefix("relax.")
    shape = list(data.ty.shape.values)
    extent = int(shape[scan.axis]) if isinstance(shape[scan.axis], tirx.IntImm) else None
    long = extent is None or WHOLE < extent <= CHUNK * MOST_CHUNKS
    columns = shape[scan.axis + 1 :]
    if columns and long and extent and _product(columns) >= FEW:
        nests = Nests([data.ty], [call.ty])
        _write_columns(nests, scan, extent)
        return emit(builder, name, nests.primfunc(), [data], [call.ty])[0]
    if columns or not long:
        return scan_by_reductions(builder, data, scan, name)
    nests = Nests([data.ty], [call.ty])
    (x,), (result,), (extents, _) = nests.inputs, nests.outputs, nests.extents
    *outer, size = extents
    chunk = CHUNK if extent is None else min(CHUNK, extent)
    with nests.rows("scan", math.prod(map(int64, outer), start=int64(1))) as row:
        at = _indices(outer, row)
        _write(scan, (x, at), (result, at), int64(size), chunk)
    return emit(builder, name, nests.primfunc(), [data], [call.ty])[0]


def _write_columns(nests: Nests, scan: Scan, size: int) -> None:
    """Write the scan of columns of ``size`` elements."""
    (x,), (out,), (shape, _) = nests.inputs, nests.outputs, nests.extents
    outer, inner = shape[: scan.axis], shape[scan.axis + 1 :]
    count = _product(inner)
    tiles, each = -(-count // LANES), -(-size // PARTS)
    neutral = tirx.const(scan.neutral, scan.full)
    with nests.rows("scan", math.prod(map(int64, outer), start=int64(tiles))) as block:
        of_outer = _indices(outer, tirx.truncdiv(block, int64(tiles)))
        first = tirx.truncmod(block, int64(tiles)) * LANES
        totals = shared([PARTS * LANES], scan.full)

        def place(thread: Any, step: Any) -> tuple[Any, Any, tuple[Any, ...]]:
            """Return the row and the column of a thread's element, and its indices, of the last one beyond the ends."""
            row, column = tirx.truncdiv(thread, int64(LANES)) * each + step, first + tirx.truncmod(thread, int64(LANES))
            of_inner = _indices(inner, tirx.min(column, int64(count - 1)))
            return row, column, (*of_outer, tirx.min(row, int64(size - 1)), *of_inner)

        with T.parallel(int64(0), int64(PARTS * LANES)) as thread:
            total = local(neutral)
            with T.serial(int64(0), int64(each)) as step:
                row, _, at = place(thread, step)
                total[0] = scan.combine(total[0], tirx.Select(row < size, cast(x[at], scan.full), neutral))
            totals[thread] = total[0]
        with T.parallel(int64(0), int64(PARTS * LANES)) as thread:
            held = local(neutral)
            with T.serial(int64(0), tirx.truncdiv(thread, int64(LANES))) as part:
                held[0] = scan.combine(held[0], totals[part * LANES + tirx.truncmod(thread, int64(LANES))])
            with T.serial(int64(0), int64(each)) as step:
                row, column, at = place(thread, step)
                value, before = local(cast(x[at], scan.full)), local(held[0])
                held[0] = scan.combine(held[0], value[0])
                with T.If(tirx.all(row < size, column < count)), T.Then():
                    out[at] = cast(before[0] if scan.exclusive else held[0], scan.dtype)


def _product(extents: list[Any]) -> int:
    """Return the product of extents; 0 if it is not known."""
    return math.prod(int(each) if isinstance(each, tirx.IntImm) else 0 for each in extents)


def _indices(extents: list[Any], flat: Any) -> tuple[Any, ...]:
    """Return the indices of the element of a tensor that has a place in the order of its elements."""
    indices: list[Any] = []
    for extent in reversed(extents):
        indices.insert(0, tirx.truncmod(flat, int64(extent)))
        flat = tirx.truncdiv(flat, int64(extent))
    return tuple(indices)


def _write(scan: Scan, source: Any, result: Any, size: Any, chunk: int) -> None:
    """Write the scan of a row of ``size`` elements."""
    (x, of_source), (out, of_result) = source, result
    neutral = tirx.const(scan.neutral, scan.full)
    halves, carried = shared([2 * chunk], scan.full), shared([1], scan.full)
    count = tirx.const(chunk, "int64")
    with one_thread():
        carried[0] = neutral
    with T.serial(int64(0), ceil_div(size, chunk)) as number:
        first, held = number * count, 0
        with T.parallel(int64(0), count) as i:
            at = tirx.min(first + i, size - 1)
            halves[i] = tirx.Select(first + i < size, cast(x[(*of_source, at)], scan.full), neutral)
        for distance in (1 << level for level in range((chunk - 1).bit_length())):
            with T.parallel(int64(0), count) as i:
                own, before = halves[held + i], halves[held + tirx.max(i - distance, int64(0))]
                halves[chunk - held + i] = tirx.Select(i >= distance, scan.combine(before, own), own)
            held = chunk - held
        with T.parallel(int64(0), count) as i, T.If(first + i < size), T.Then():
            value = halves[held + i]
            if scan.exclusive:
                value = tirx.Select(i > 0, halves[held + tirx.max(i - 1, int64(0))], neutral)
            out[(*of_result, first + i)] = cast(scan.combine(carried[0], value), scan.dtype)
        with one_thread():
            carried[0] = scan.combine(carried[0], halves[held + count - 1])

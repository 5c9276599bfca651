"""Lower cumulative sums and products along the last axis for GPUs: a block of threads scans a row.

In each of log2(n) steps an element combines what it has with that of the element 1, 2, 4 ... before it (Hillis and
Steele 1986, "Data Parallel Algorithms"), from one half of shared memory to the other. Rows that are longer than a block
has threads are scanned in chunks, each of which begins with the total of those before it.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, cast, ceil_div, emit, int64, one_thread, shared
from packager.lower.legalize.cumulative import WHOLE, Scan, read_scan, scan_by_reductions

# Elements of a chunk: the threads of a block.
CHUNK = 1024
# Chunks of a row beyond which other blocks wait for too long.
MOST_CHUNKS = 32


def scan_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``cumsum`` and ``cumprod``; those along other axes, and of few elements or very many, by reductions."""
    (data, scan), name = read_scan(builder, call), call.op.name.removeprefix("relax.")
    shape = list(data.ty.shape.values)
    extent = int(shape[-1]) if isinstance(shape[-1], tirx.IntImm) else None
    long = extent is None or WHOLE < extent <= CHUNK * MOST_CHUNKS
    if scan.axis != len(shape) - 1 or not long:
        return scan_by_reductions(builder, data, scan, name)
    nests = Nests([data.ty], [call.ty])
    (x,), (result,), (extents, _) = nests.inputs, nests.outputs, nests.extents
    *outer, size = extents
    chunk = CHUNK if extent is None else min(CHUNK, extent)
    with nests.rows("scan", math.prod(map(int64, outer), start=int64(1))) as row:
        _write(scan, _row(x, outer, row), _row(result, outer, row), int64(size), chunk)
    return emit(builder, name, nests.primfunc(), [data], [call.ty])[0]


def _row(tensor: Any, outer: list[Any], row: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a tensor and the indices of a row of it."""
    indices: list[Any] = []
    for extent in reversed(outer):
        indices.insert(0, tirx.truncmod(row, int64(extent)))
        row = tirx.truncdiv(row, int64(extent))
    return tensor, tuple(indices)


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

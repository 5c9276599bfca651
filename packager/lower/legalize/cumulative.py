"""Lower cumulative sums and products: one pass along the axis on CPUs, or a reduction for each element.

Half precision is added up in float32 and rounded for each element, on CPUs by ``reduce_in_float32``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.dtypes import HALVES
from packager.lower.legalize.accumulate import FULL
from packager.lower.tir_loops import emit_rows, int64, numbers

# Axes up to this extent are one reduction for each element.
WHOLE = 64
# Columns behind the axis that one task adds up, at least: rows of them lie one after the other in memory.
BAND = 1024

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda ty: tirx.const(1, ty), name="product")
_SUM, _PROD = (operator.add, te.sum, 0), (operator.mul, _PRODUCT, 1)
_OPERATORS = {"relax.cumsum": _SUM, "relax.cumprod": _PROD}


@dataclass(frozen=True)
class Scan:
    """How an axis is scanned: the operation, its reduction and its identity."""

    combine: Callable[[Any, Any], Any]
    reducer: Any
    neutral: int
    axis: int
    exclusive: bool
    dtype: str

    @property
    def full(self) -> str:
        """The type in which GPUs add up."""
        return FULL if self.dtype in HALVES else self.dtype

    def in_rows(self, x: Any, out: Any, shape: Sequence[Any], row: Any) -> None:
        """Write a band of columns of a flat result, each row of them from the one before."""
        extent, columns = int64(shape[self.axis]), math.prod(shape[self.axis + 1 :])
        width = _width(columns)
        bands = tirx.indexdiv(int64(columns), width)
        first = T.bind(tirx.indexdiv(row, bands) * extent * columns + tirx.indexmod(row, bands) * width)
        with T.serial(0, tirx.min(extent, int64(1))), T.serial(0, width) as column:  # none of an empty axis
            out[first + column] = tirx.const(self.neutral, self.dtype) if self.exclusive else x[first + column]
        with T.serial(0, extent - 1) as i, T.serial(0, width) as column:
            before = first + i * columns + column
            out[before + columns] = self.combine(out[before], x[before if self.exclusive else before + columns])

    def whole(self, x: Any, *, exclusive: bool, name: str = "scan") -> Any:
        """Reduce, for each element, the elements that precede it."""
        axis = self.axis
        along = te.reduce_axis((0, x.shape[axis]), name="j")

        def element(*i: Any) -> Any:
            value = x(*i[:axis], along, *i[axis + 1 :])
            return self.reducer(self._term(along, i[axis], value, exclusive=exclusive), axis=along)

        return te.compute(x.shape, element, name=name)

    def in_chunks(self, x: Any, extent: int) -> Any:
        """Scan the totals of chunks, then the elements of each chunk: O(n sqrt(n)) work, all of it parallel."""
        axis, size = self.axis, math.isqrt(extent - 1) + 1
        outer, inner = list(x.shape[:axis]), list(x.shape[axis + 1 :])

        def read(i: Sequence[Any], index: Any) -> Any:
            last = tirx.const(extent - 1, "int64")
            value = x(*i[:axis], tirx.min(index.astype("int64"), last), *i[axis + 1 :])
            return tirx.Select(index < extent, value, tirx.const(self.neutral, self.full))

        within, near = (te.reduce_axis((0, size), name=name) for name in ("within", "near"))
        totals = te.compute(
            [*outer, -(-extent // size), *inner],
            lambda *i: self.reducer(read(i, i[axis] * size + within), axis=within),
            name="totals",
        )
        before = self.whole(totals, exclusive=True, name="before")

        def own(*i: Any) -> Any:
            index = i[axis] // size * size + near
            return self.reducer(self._term(index, i[axis], read(i, index), exclusive=self.exclusive), axis=near)

        parts = te.compute(x.shape, own, name="parts")

        def joined(*i: Any) -> Any:
            return self.combine(before(*i[:axis], i[axis] // size, *i[axis + 1 :]), parts(*i))

        return te.compute(x.shape, joined, name="scan")

    def _term(self, j: Any, i: Any, value: Any, *, exclusive: bool) -> Any:
        """Return ``value``, of element j, if j precedes i, else the identity."""
        return tirx.Select(j < i if exclusive else j <= i, value, tirx.const(self.neutral, self.full))


def legalize_in_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``cumsum`` and ``cumprod`` for CPUs."""
    data, scan = read_scan(builder, call)

    def shapes(x: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        shape = numbers(x.shape)
        columns = math.prod(shape[scan.axis + 1 :])
        rows = int64(math.prod(shape[: scan.axis])) * tirx.indexdiv(int64(columns), _width(columns))
        return rows, [(list(x.shape), scan.dtype)]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        data, result = buffers
        scan.in_rows(data, result, numbers(given[0]), row)

    return emit_rows(builder, call.op.name.removeprefix("relax."), [data], shapes, body)[0]


def scan_by_reductions(builder: relax.BlockBuilder, data: Any, scan: Scan, name: str) -> relax.Expr:
    """Emit a function in which each element is a reduction, for GPUs; long axes are split into chunks."""

    def compute(x: Any) -> Any:
        wide = topi.cast(x, scan.full)
        extent = numbers(x.shape)[scan.axis]
        long = isinstance(extent, int) and extent > WHOLE
        result = scan.in_chunks(wide, extent) if long else scan.whole(wide, exclusive=scan.exclusive)
        return topi.cast(result, scan.dtype)

    return builder.call_te(compute, data, primfunc_name_hint=name)


def read_scan(builder: relax.BlockBuilder, call: relax.Call) -> tuple[Any, Scan]:
    """Return the data, in the type of the result and flat if no axis is given, and the scan of a call."""
    data, axis = call.args[0], call.attrs.axis
    if axis is None:
        data, axis = builder.emit(relax.op.reshape(data, [-1])), 0
    if str(data.ty.dtype) != str(call.ty.dtype):
        data = builder.emit(relax.op.astype(data, str(call.ty.dtype)))
    exclusive = bool(call.attrs.exclusive)
    return data, Scan(*_OPERATORS[call.op.name], int(axis) % len(data.ty.shape.values), exclusive, str(call.ty.dtype))


def _width(columns: Any) -> int:
    """Return the width of the bands in which the columns behind the axis are computed in parallel, by vectors."""
    if not isinstance(columns, int):
        return 1
    return columns // next((count for count in range(columns // BAND, 1, -1) if columns % count == 0), 1)

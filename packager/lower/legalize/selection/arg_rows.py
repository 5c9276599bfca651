"""Lower argmax and argmin of rows for CPUs: a vector of the best so far and where they were, merged at the end.

NaN is better than all numbers, as in torch and numpy; of equal elements the first is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.graph.dataflow import operator_of
from packager.lower.legalize.min_max import legalize_arg
from packager.lower.legalize.reshape import legalize_reshape
from packager.lower.tir_loops import emit_rows

DTYPES = ("float32", "float64", "int32")
# Elements of a vector; shorter rows have vectors of half of it, or of a quarter.
LANES = 16
LEAST = 4
# The integers that have the bits of floats, and infinity's bits.
_BITS = {"float32": "int32", "float64": "int64"}
_INFINITIES = {"int32": 0xFF << 23, "int64": 0x7FF << 52}


def legalize_arg_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``argmax`` or ``argmin`` along the last axis of a known extent; others by TVM's reduction."""
    data = call.args[0]
    rank, dtype = data.ty.ndim, str(data.ty.dtype)
    last = data.ty.shape.values[-1] if rank else None
    along_rows = rank and call.attrs.axis is not None and int(call.attrs.axis) % rank == rank - 1
    if not along_rows or not isinstance(last, tirx.IntImm) or int(last) < LEAST or dtype not in DTYPES:
        return legalize_arg(builder, call)
    name = operator_of(call)
    search = _Search(int(last), dtype, largest=name == "argmax")

    rows = math.prod(data.ty.shape.values[:-1], start=tirx.const(1, "int64"))

    def find(buffers: Sequence[Any], _given: Sequence[Sequence[Any]], row: Any) -> None:
        source, result = buffers
        result[row] = search.of(source, T.bind(row * search.count)).astype(str(call.ty.dtype))

    # Elements of a tensor of more axes would each be found by divisions.
    flat = _reshaped(builder, data, [rows * search.count])
    results = [([rows], str(call.ty.dtype))]
    return _reshaped(
        builder, emit_rows(builder, name, [flat], lambda _: (rows, results), find)[0], call.ty.shape.values
    )


def _reshaped(builder: relax.BlockBuilder, data: Any, shape: Sequence[Any]) -> Any:
    return builder.emit(legalize_reshape(builder, builder.normalize(relax.op.reshape(data, list(shape)))))


class _Search:
    """The search for the best element of ``count`` contiguous ones."""

    def __init__(self, count: int, dtype: str, *, largest: bool) -> None:
        self.count, self.dtype, self.largest = count, dtype, largest
        self.lanes = next(lanes for lanes in (LANES, LANES // 2, LANES // 4) if lanes <= count)

    def of(self, source: Any, base: Any) -> Any:
        """Return the index of the best element from ``base`` on."""
        best, place = self._vector(self.dtype), self._vector("int32")
        magnitude = self._vector(_BITS[self.dtype]) if self.dtype in _BITS else None
        with T.vectorized(0, self.lanes) as lane:
            best[lane] = source[base + lane]
        with T.vectorized(0, self.lanes) as lane:
            place[lane] = lane.astype("int32")
        if magnitude is not None:
            with T.vectorized(0, self.lanes) as lane:
                magnitude[lane] = self._magnitude(best[lane])
        whole = self.count // self.lanes
        if whole > 1:
            with T.serial(0, whole - 1) as chunk:
                self._take(source, base, (chunk + 1) * self.lanes, best, place, magnitude)
        if self.count % self.lanes:  # some of these have been seen
            self._take(source, base, tirx.const(self.count - self.lanes, "int64"), best, place, magnitude)
        half = self.lanes // 2
        while half:
            self._merge(best, place, magnitude, half)
            half //= 2
        if magnitude is not None:
            self._find_nan(source, base, place, magnitude)
        return place[0]

    def _vector(self, dtype: str) -> Any:
        return T.buffer_proxy(T.alloc_buffer((self.lanes,), dtype, scope="local", layout=None))

    def _take(self, source: Any, base: Any, first: Any, best: Any, place: Any, magnitude: Any) -> None:
        """Compare with elements from ``first`` on."""
        with T.vectorized(0, self.lanes) as lane:
            at = first.astype("int32") + lane.astype("int32")
            place[lane] = tirx.Select(self._is_better(source[base + first + lane], best[lane]), at, place[lane])
        with T.vectorized(0, self.lanes) as lane:
            value = source[base + first + lane]
            best[lane] = tirx.Select(self._is_better(value, best[lane]), value, best[lane])
        if magnitude is not None:
            with T.vectorized(0, self.lanes) as lane:
                magnitude[lane] = tirx.max(magnitude[lane], self._magnitude(source[base + first + lane]))

    def _merge(self, best: Any, place: Any, magnitude: Any, half: int) -> None:
        """Compare the first lanes with as many others: of equal ones the first element stays."""

        def is_other(lane: Any) -> Any:
            one, other = best[lane], best[lane + half]
            return tirx.any(self._is_better(other, one), tirx.all(one == other, place[lane + half] < place[lane]))

        both = self._vector("int32")
        with T.vectorized(0, half) as lane:
            both[lane] = tirx.Select(is_other(lane), place[lane + half], place[lane])
        with T.vectorized(0, half) as lane:
            best[lane] = tirx.Select(is_other(lane), best[lane + half], best[lane])
        with T.vectorized(0, half) as lane:
            place[lane] = both[lane]
        if magnitude is not None:
            with T.vectorized(0, half) as lane:
                magnitude[lane] = tirx.max(magnitude[lane], magnitude[lane + half])

    def _find_nan(self, source: Any, base: Any, place: Any, magnitude: Any) -> None:
        """If there is a NaN, find the first one: no comparison of vectors did."""
        kind = _BITS[self.dtype]
        infinity = tirx.const(_INFINITIES[kind], kind)
        with T.If(magnitude[0] > infinity), T.Then(), T.serial(0, self.count) as i:
            at = tirx.const(self.count - 1, "int64") - i
            with T.If(self._magnitude(source[base + at]) > infinity), T.Then():
                place[0] = at.astype("int32")

    def _magnitude(self, value: Any) -> Any:
        """Return the bits of an element but for its sign: those of a NaN are above infinity's."""
        kind = _BITS[self.dtype]
        return tirx.reinterpret(kind, value) & tirx.const(np.iinfo(kind).max, kind)

    def _is_better(self, one: Any, other: Any) -> Any:
        return one > other if self.largest else one < other

"""Cumulative sums and products.

ONNX operators CumSum (version 14) and CumProd (26). Each output is an independent reduction, so that all are computed
in parallel. Long axes are split into chunks whose totals are scanned first: O(n sqrt(n)) work.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, known

# Axes up to this extent are not split.
WHOLE = 64

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda ty: tirx.const(1, ty), name="product")


@dataclass(frozen=True)
class _Scan:
    """How an axis is scanned: the reduction, its identity, and which elements precede which."""

    reducer: Any
    combine: Callable[[Any, Any], Any]
    neutral: int
    axis: int
    dtype: str
    backwards: bool
    exclusive: bool

    def term(self, j: Any, i: Any, value: Any, *, exclusive: bool) -> Any:
        """Return ``value``, of element j, if j precedes i, else the identity."""
        before = (operator.gt, operator.ge) if self.backwards else (operator.lt, operator.le)
        return tirx.Select(before[not exclusive](j, i), value, tirx.const(self.neutral, self.dtype))

    def whole(self, x: Any, *, exclusive: bool, name: str = "scan") -> Any:
        """Reduce, for each element, the elements that precede it."""
        axis = self.axis
        along = te.reduce_axis((0, x.shape[axis]), name="j")

        def element(*i: Any) -> Any:
            value = x(*i[:axis], along, *i[axis + 1 :])
            return self.reducer(self.term(along, i[axis], value, exclusive=exclusive), axis=along)

        return te.compute(x.shape, element, name=name)

    def in_chunks(self, x: Any, extent: int) -> Any:
        """Scan the totals of chunks, then the elements of each chunk."""
        axis, size = self.axis, math.isqrt(extent - 1) + 1
        outer, inner = list(x.shape[:axis]), list(x.shape[axis + 1 :])

        def read(i: Sequence[Any], index: Any) -> Any:
            last = tirx.const(extent - 1, "int64")
            value = x(*i[:axis], tirx.min(index.astype("int64"), last), *i[axis + 1 :])
            return tirx.Select(index < extent, value, tirx.const(self.neutral, self.dtype))

        within, near = (te.reduce_axis((0, size), name=name) for name in ("within", "near"))
        totals = te.compute(
            [*outer, -(-extent // size), *inner],
            lambda *i: self.reducer(read(i, i[axis] * size + within), axis=within),
            name="totals",
        )
        before = self.whole(totals, exclusive=True, name="before")

        def own(*i: Any) -> Any:
            index = i[axis] // size * size + near
            return self.reducer(self.term(index, i[axis], read(i, index), exclusive=self.exclusive), axis=near)

        parts = te.compute(x.shape, own, name="parts")

        def joined(*i: Any) -> Any:
            return self.combine(before(*i[:axis], i[axis] // size, *i[axis + 1 :]), parts(*i))

        return te.compute(x.shape, joined, name="scan")


def _convert(reducer: Any, combine: Any, neutral: int, kind: str) -> Converter:
    def convert_node(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
        data = inputs[0]
        axis = int(known(inputs[1], attributes, f"the axis of {kind}").reshape(-1)[0]) % data.ty.ndim
        backwards, exclusive = bool(attributes.get("reverse", 0)), bool(attributes.get("exclusive", 0))
        scan, extent = _Scan(reducer, combine, neutral, axis, dtype_of(data), backwards, exclusive), extents(data)[axis]

        def compute(x: Any) -> Any:
            long = isinstance(extent, int) and extent > WHOLE
            return scan.in_chunks(x, extent) if long else scan.whole(x, exclusive=exclusive)

        return builder.call_te(compute, data, primfunc_name_hint=kind.lower())

    return convert_node


CONVERTERS: Mapping[str, Converter] = {
    "CumSum": _convert(te.sum, operator.add, 0, "CumSum"),
    "CumProd": _convert(_PRODUCT, operator.mul, 1, "CumProd"),
}

"""Cumulative sums and products.

ONNX operators CumSum (version 14) and CumProd (26). Each output is an independent reduction, so that all are computed
in parallel. Long axes are split into chunks whose totals are scanned first: O(n sqrt(n)) work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, known

# Axes up to this extent are not split.
WHOLE = 64

_PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda ty: tirx.const(1, ty), name="product")
_REDUCERS: Mapping[str, tuple[Any, int]] = {"CumSum": (te.sum, 0), "CumProd": (_PRODUCT, 1)}


def _scan(kind: str) -> Converter:
    reducer, neutral = _REDUCERS[kind]

    def convert_node(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
        data, dtype = inputs[0], dtype_of(inputs[0])
        axis = int(known(inputs[1], attributes, f"the axis of {kind}").reshape(-1)[0]) % data.ty.ndim
        backwards, exclusive = bool(attributes.get("reverse", 0)), bool(attributes.get("exclusive", 0))
        extent = extents(data)[axis]

        def compute(x: Any) -> Any:
            return _running(x, axis, dtype, reducer, neutral, backwards=backwards, exclusive=exclusive)

        if isinstance(extent, int) and extent > WHOLE:
            return builder.call_te(
                lambda x: _in_chunks(
                    x, axis, extent, dtype, reducer, neutral, backwards=backwards, exclusive=exclusive
                ),
                data,
                primfunc_name_hint=kind.lower(),
            )
        return builder.call_te(compute, data, primfunc_name_hint=kind.lower())

    return convert_node


def _precedes(j: Any, i: Any, *, backwards: bool, exclusive: bool) -> Any:
    if backwards:
        return j > i if exclusive else j >= i
    return j < i if exclusive else j <= i


def _running(
    x: Any, axis: int, dtype: str, reducer: Any, neutral: int, *, backwards: bool, exclusive: bool, name: str = "scan"
) -> Any:
    """Reduce, for each element, the elements that precede it."""
    along = te.reduce_axis((0, x.shape[axis]), name="j")

    def element(*i: Any) -> Any:
        taken = _precedes(along, i[axis], backwards=backwards, exclusive=exclusive)
        value = x(*i[:axis], along, *i[axis + 1 :])
        return reducer(tirx.Select(taken, value, tirx.const(neutral, dtype)), axis=along)

    return te.compute(x.shape, element, name=name)


def _in_chunks(
    x: Any, axis: int, extent: int, dtype: str, reducer: Any, neutral: int, *, backwards: bool, exclusive: bool
) -> Any:
    size = math.isqrt(extent - 1) + 1
    chunks = -(-extent // size)
    nothing = tirx.const(neutral, dtype)
    outer, inner = list(x.shape[:axis]), list(x.shape[axis + 1 :])

    def read(others: Sequence[Any], index: Any) -> Any:
        last = tirx.const(extent - 1, "int64")
        value = x(*others[:axis], tirx.min(index.astype("int64"), last), *others[axis:])
        return tirx.Select(index < extent, value, nothing)

    within = te.reduce_axis((0, size), name="within")
    totals = te.compute(
        [*outer, chunks, *inner],
        lambda *i: reducer(read((*i[:axis], *i[axis + 1 :]), i[axis] * size + within), axis=within),
        name="totals",
    )
    before = _running(totals, axis, dtype, reducer, neutral, backwards=backwards, exclusive=True, name="before")
    near = te.reduce_axis((0, size), name="near")

    def own(*i: Any) -> Any:
        index = i[axis] // size * size + near
        taken = _precedes(index, i[axis], backwards=backwards, exclusive=exclusive)
        value = read((*i[:axis], *i[axis + 1 :]), index)
        return reducer(tirx.Select(taken, value, nothing), axis=near)

    parts = te.compute(x.shape, own, name="parts")
    combine: Callable[[Any, Any], Any] = (lambda a, b: a + b) if neutral == 0 else (lambda a, b: a * b)
    return te.compute(
        x.shape,
        lambda *i: combine(before(*i[:axis], i[axis] // size, *i[axis + 1 :]), parts(*i)),
        name="scan",
    )


SCANS: Mapping[str, Converter] = {kind: _scan(kind) for kind in _REDUCERS}

"""Emits the best elements along any axis of a tensor, by ``packager.top_k`` of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from packager.graph.dataflow import extents_of
from packager.lower import sorting


def emit_top_k(
    emit: Callable[[Any], Any], data: Any, k: Any, axis: int, most: int, *, largest: bool
) -> tuple[Any, Any]:
    """Emit the ``k`` largest or smallest elements along an axis, in order, and their indices.

    ``most`` is an upper bound of the extent of the axis.
    """
    shape, op = extents_of(data) or (), relax.op
    last = len(shape) - 1
    order = [*(i for i in range(len(shape)) if i != axis), axis]
    back = [order.index(i) for i in range(len(shape))]
    rows = data if axis == last else emit(op.permute_dims(data, order))
    outer = [_int64(extent) for i, extent in enumerate(shape) if i != axis]
    flat = emit(op.reshape(rows, [math.prod(outer, start=tirx.IntImm("int64", 1)), _int64(shape[axis])]))
    both = emit(sorting.top_k(flat, _int64(k), largest, most))
    parts = (emit(op.reshape(emit(relax.TupleGetItem(both, field)), [*outer, _int64(k)])) for field in range(2))
    values, indices = (part if axis == last else emit(op.permute_dims(part, back)) for part in parts)
    return values, indices


def _int64(extent: Any) -> Any:
    """Return an extent as an expression of type int64."""
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent

"""Has gathers read indices as the model gives them, and slices at constant places without a gather.

Lowered, ``take`` counts negative indices from the end itself: where importers add the extent to them first, that costs
a kernel for each table. One slice, or evenly spaced ones, are a ``strided_slice``, which fuses with what reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from packager.graph.dataflow import operator_of, same, scalar_of, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings


def simplify_gathers(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite ``take`` along an axis in ``main``. Leaves dead code."""
    made: IdentityMap[Any] = IdentityMap()

    def simplify(binding: Any) -> list[Any]:
        call = binding.value
        made[binding.var] = call
        shape = shape_of(call.args[0]) if operator_of(call) == "take" else None
        if shape is None or call.attrs.axis is None:
            return [binding]
        axis = int(call.attrs.axis) % len(shape)
        if isinstance(call.args[1], GenericConst):
            result = _slices(call, axis, shape[axis])
        else:
            result = _as_given(call, made, shape[axis])
        return [binding if result is None else relax.VarBinding(binding.var, result)]

    return relax.transform.Normalize()(map_bindings(module, simplify))


def _slices(call: Any, axis: int, extent: Any) -> Any | None:
    """Return the slices at constant places as they lie, or None if they are not evenly spaced."""
    places = call.args[1].value.numpy().astype(np.int64)
    if not isinstance(extent, int) or places.size == 0 or places.ndim > 1:
        return None
    ordered = np.where(places < 0, places + extent, places).reshape(-1)
    steps = set(np.diff(ordered).tolist()) or {1}
    first, last, step = int(ordered[0]), int(ordered[-1]), steps.pop()
    if steps or step < 1 or first < 0 or last >= extent:
        return None
    taken = relax.op.strided_slice(call.args[0], [axis], [first], [last + 1], [step])
    return relax.op.squeeze(taken, [axis]) if places.ndim == 0 else taken


def _as_given(call: Any, made: IdentityMap[Any], extent: Any) -> Any | None:
    """Return the gather with indices that the extent has not been added to, or None if it has not."""
    where: Any = made.get(call.args[1])
    if operator_of(where) != "where":
        return None
    less: Any = made.get(where.args[0])
    added: Any = made.get(where.args[1])
    indices = where.args[2]
    if operator_of(less) != "less" or operator_of(added) != "add":
        return None
    if not (less.args[0].same_as(indices) and added.args[0].same_as(indices) and scalar_of(less.args[1]) == 0):
        return None
    shift = scalar_of(added.args[1])
    if shift is None or not same(int(shift), extent):
        return None
    return relax.op.take(call.args[0], indices, call.attrs.axis, mode="wrap")

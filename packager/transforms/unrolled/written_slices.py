"""Makes a concatenation of slices that are written into a tensor one after the other, until nothing else is left of it.

``x[:, i] = ...`` of each step of a loop is exported as a choice of each element between the tensor and what is written,
by a mask that is true along one index: a copy of the tensor in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, static_shape_of
from packager.graph.rewrite import map_bindings, tidy


def concat_written(module: tvm.IRModule, flow: Dataflow, fewest: int) -> tvm.IRModule:
    """Rewrite the last of such choices in ``main``, of ``fewest`` or more."""
    found = False

    def rewrite(binding: Any) -> list[Any]:
        nonlocal found
        if operator_of(binding.value) != "where" or any(_is_choice(flow, r) for r in flow.readers(binding.var)):
            return [binding]
        written = _all_written(flow, binding.var)
        if written is None or len(written[1]) < fewest:
            return [binding]
        found = True
        axis, slices = written
        return [relax.VarBinding(binding.var, relax.op.concat(slices, axis=axis))]

    rewritten = map_bindings(module, rewrite)
    return tidy(relax.transform.Normalize()(rewritten)) if found else module


def _is_choice(flow: Dataflow, variable: Any) -> bool:
    return _written(flow, variable) is not None


def _all_written(flow: Dataflow, variable: Any) -> tuple[int, list[Any]] | None:
    """Return an axis, and the slices along it, that choices up to a variable write; None if any is left out."""
    slices: dict[int, Any] = {}
    axes = set()
    extents = static_shape_of(variable)
    while (choice := _written(flow, variable)) is not None:
        axis, index, value, variable = choice
        axes.add(axis)
        slices.setdefault(index, value)
        if len(axes) > 1 or not flow.is_read_once(variable):
            break
    if len(axes) != 1 or extents is None or sorted(slices) != list(range(extents[min(axes)])):
        return None
    return min(axes), [slices[index] for index in sorted(slices)]


def _written(flow: Dataflow, variable: Any) -> tuple[int, int, Any, Any] | None:
    """Return axis, index, what is written there and the tensor before, of such a choice; None for other values."""
    call, shape = flow.call(variable, "where"), static_shape_of(variable)
    mask = None if call is None else flow.array(call.args[0])
    repeated = None if call is None else flow.call(call.args[1], "broadcast_to")
    if mask is None or repeated is None or not shape or static_shape_of(call.args[2]) != shape:
        return None
    mask, own = np.broadcast_to(mask, shape), static_shape_of(repeated.args[0])
    for axis, extent in enumerate(shape):
        (places,) = np.nonzero(mask.any(tuple(other for other in range(len(shape)) if other != axis)))
        is_slice = extent > 1 and len(places) == 1 and np.count_nonzero(mask) * extent == mask.size
        if is_slice and own == (*shape[:axis], 1, *shape[axis + 1 :]):
            return axis, int(places[0]), repeated.args[0], call.args[2]
    return None

"""Makes a concatenation of slices that are written into a tensor one after the other, until nothing else is left of it.

``x[:, i] = ...`` of each step of a loop is exported as a choice of each element between the tensor and what is written,
by a mask that is true along one index: a copy of the tensor in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, slice_of, static_shape_of
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
    return written_slice(flow, variable) is not None


def _all_written(flow: Dataflow, variable: Any) -> tuple[int, list[Any]] | None:
    """Return an axis, and the slices along it, that choices up to a variable write; None if any is left out."""
    slices: dict[int, Any] = {}
    axes = set()
    extents = static_shape_of(variable)
    while (choice := written_slice(flow, variable)) is not None:
        axis, index, value, variable = choice
        axes.add(axis)
        slices.setdefault(index, value)
        if len(axes) > 1 or not flow.is_read_once(variable):
            break
    if len(axes) != 1 or extents is None or sorted(slices) != list(range(extents[min(axes)])):
        return None
    return min(axes), [slices[index] for index in sorted(slices)]


def written_slice(flow: Dataflow, variable: Any) -> tuple[int, int, Any, Any] | None:
    """Return axis, index, what is written there and the tensor before; None for other values."""
    return _chosen_slice(flow, variable) or _joined_slice(flow, variable)


def _chosen_slice(flow: Dataflow, variable: Any) -> tuple[int, int, Any, Any] | None:
    """Return them where a mask chooses what is written."""
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


def _joined_slice(flow: Dataflow, variable: Any) -> tuple[int, int, Any, Any] | None:
    """Return them where what is written is joined with what lies before and behind it in the tensor."""
    call, shape = flow.call(variable, "concat"), static_shape_of(variable)
    fields = list(call.args[0].fields) if call is not None else []
    if not shape or len(fields) not in (2, 3):
        return None
    axis = int(call.attrs.axis or 0) % len(shape)
    for source in (flow.call(field, "strided_slice") for field in fields):
        before = None if source is None else source.args[0]
        if static_shape_of(before) != shape:
            continue
        begin, written = 0, list[tuple[int, Any]]()
        for field in fields:
            length = (static_shape_of(field) or shape)[axis]
            if sliced(flow, field, before) != {axis: (begin, begin + length)}:
                written.append((begin, field))
            begin += length
        if len(written) == 1 and (static_shape_of(written[0][1]) or shape)[axis] == 1:
            return axis, *written[0], before
    return None


def sliced(flow: Dataflow, variable: Any, source: Any) -> dict[int, tuple[int, int]] | None:
    """Return begin and end along each axis that a slice of ``source`` takes not all of; None if it is no slice."""
    call = flow.value(variable)
    slices, extents = slice_of(call), static_shape_of(source)
    if slices is None or extents is None or not call.args[0].same_as(source):
        return None
    bounds = [part.indices(extent) for part, extent in zip(slices, extents, strict=True)]
    return {axis: (begin, end) for axis, (begin, end, _) in enumerate(bounds) if (begin, end) != (0, extents[axis])}

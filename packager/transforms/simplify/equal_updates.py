"""Adds equal elements by index in one column: nets over graphs count the edges of each node so, once for each channel.

What is added is broadcast behind the scatter instead of before it. Constants of equal elements, as ONNX files have them
in place of ``ones_like``, become broadcasts: backends may count the indices of a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, flow_of, operator_of, same, shape_of
from packager.graph.equal_elements import equal_elements
from packager.graph.rewrite import Bindings, map_bindings
from packager.ir.model import ImportedModel


def add_equal_updates(model: ImportedModel) -> tvm.IRModule:
    """Rewrite scatters in the ``main`` of a model that add equal elements. Leaves dead code."""
    flow = flow_of(model)

    def rewrite(binding: Any) -> list[Any]:
        call = binding.value
        if operator_of(call) not in ("scatter_elements", "scatter_nd") or not shape_of(call):
            return [binding]
        made = Bindings(binding.var)
        into, update = (equal_elements(flow, operand) for operand in (call.args[0], call.args[2]))
        narrow = None if update is None else _in_one_column(flow, call, (into, update), made)
        if narrow is not None:
            return made.ended(narrow)
        data, updates = (_broadcast(flow, *pair, made) for pair in ((call.args[0], into), (call.args[2], update)))
        return made.ended(relax.Call(call.op, [data, call.args[1], updates], call.attrs))

    return relax.transform.Normalize()(map_bindings(model.module, rewrite))


def _broadcast(flow: Dataflow, tensor: Any, element: Any | None, made: Bindings) -> Any:
    """Return a constant of an equal ``element`` as one that is broadcast, anything else as it is."""
    if element is None or not flow.is_constant(tensor):
        return tensor
    return made.bind(relax.op.broadcast_to(element, list(shape_of(tensor) or ())))


def _in_one_column(flow: Dataflow, call: Any, elements: tuple[Any | None, Any], made: Bindings) -> Any | None:
    """Return what a scatter computes by one of a column; None if it has only one, or does not add.

    ``elements`` are those of the data, if they are equal, and of the updates.
    """
    data, (start, update) = call.args[0], elements
    shape, counts = shape_of(data) or (), shape_of(call.args[2]) or ()
    axes, indices = _columns(flow, call, shape)
    if str(call.attrs.reduction) != "add" or all(same(shape[axis], 1) for axis in axes):
        return None
    narrow = [1 if axis in axes else extent for axis, extent in enumerate(shape)]
    own = [*counts[: len(counts) - len(axes)], *[1] * len(axes)]
    into = made.bind(relax.op.broadcast_to(relax.const(0, made.dtype) if start is None else start, narrow))
    updates = made.bind(relax.op.broadcast_to(update, own))
    count = made.bind(relax.Call(call.op, [into, indices, updates], call.attrs))
    return relax.op.add(data, count) if start is None else relax.op.broadcast_to(count, list(shape))


def _columns(flow: Dataflow, call: Any, shape: Sequence[Any]) -> tuple[range, Any]:
    """Return the last axes of the data whose indices are the same, and indices without such axes."""
    indices, rank = call.args[1], len(shape)
    if operator_of(call) == "scatter_nd":
        depth = (shape_of(indices) or (None,))[-1]
        return range(depth if isinstance(depth, int) else rank, rank), indices
    first = int(call.attrs.axis) % rank + 1
    wide = flow.call(indices, "broadcast_to")
    own = None if wide is None else shape_of(wide.args[0])
    full = shape_of(indices)
    if own is None or full is None or len(own) != len(full) or not same(own[:first], full[:first]):
        return range(0), indices
    are_ones = all(isinstance(extent, int) and extent == 1 for extent in own[first:])
    return (range(first, rank), wide.args[0]) if are_ones else (range(0), indices)

"""Slices a tensor before its views instead of after them: queries, keys and values of one packed product.

``nn.MultiheadAttention`` unpacks [.., 3 width] by a reshape to [.., 3, width], a transpose that brings the axis of
three to the front, and ``select``. The transpose is a copy, after which attention cannot read its heads where they lie;
a slice of the last axis and a reshape cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, same, shape_of, slice_of
from packager.graph.rewrite import map_bindings, tidy


def slice_before_views(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the slices in ``main`` of one element of an axis, before which a transpose moves this axis alone."""
    flow = Dataflow(module["main"])

    def rewrite(binding: Any) -> Iterator[Any]:
        found = _source(flow, binding.value)
        value = binding.value
        if found is not None:
            source, axis, begin, end = found
            sliced = relax.BlockBuilder().normalize(relax.op.strided_slice(source, [axis], [begin], [end]))
            part = relax.DataflowVar(binding.var.name, sliced.ty)
            yield relax.VarBinding(part, sliced)
            value = relax.op.reshape(part, binding.var.ty.shape)
        yield relax.VarBinding(binding.var, value)

    return tidy(map_bindings(module, rewrite))


def _source(flow: Dataflow, call: Any) -> tuple[Any, int, int, int] | None:
    """Return the tensor before the views that a slice reads, and axis, begin and end of the same elements there.

    None if there is no transpose among the views, or one after which the elements are in another order.
    """
    slices = slice_of(call)
    parts = [axis for axis, part in enumerate(slices or ()) if part != slice(None)]
    if slices is None or len(parts) != 1:
        return None
    (axis,) = parts
    variable, begin, end, moved = call.args[0], slices[axis].start, slices[axis].stop, False
    if begin < 0 or end - begin != 1:
        return None
    while True:
        view, after = flow.value(variable), shape_of(variable) or ()
        name = operator_of(view)
        if name not in ("permute_dims", "expand_dims", "squeeze", "reshape") or flow.is_result(variable):
            return None
        before = shape_of(view.args[0])
        if not before:
            return None
        if name == "permute_dims":
            order = [int(each) for each in view.attrs.axes or reversed(range(len(after)))]
            kept = [each for each in order if each != order[axis] and not same(before[each], 1)]
            if kept != sorted(kept):
                return None
            axis, moved = order[axis], True
        elif name == "reshape" and len(before) == len(after) - 1 and axis == len(after) - 2:
            if not same(tuple(before[:-1]), tuple(after[:-2])) or not isinstance(after[-1], int):
                return None
            width = after[-1]
            return (view.args[0], axis, begin * width, end * width) if moved else None
        elif (there := _axis_before(before, after, axis)) is not None:
            axis = there
        else:
            return None
        variable = view.args[0]


def _axis_before(before: tuple[Any, ...], after: tuple[Any, ...], axis: int) -> int | None:
    """Return where an axis was before a view that only adds or drops axes of one element; None for other views."""
    wide = [[each for each, extent in enumerate(shape) if not same(extent, 1)] for shape in (before, after)]
    if axis not in wide[1] or len(wide[0]) != len(wide[1]):
        return None
    if not all(same(before[a], after[b]) for a, b in zip(*wide, strict=True)):
        return None
    return wide[0][wide[1].index(axis)]

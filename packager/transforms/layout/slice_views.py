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

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, shape_of, slice_of
from packager.graph.normalize import OPERATOR
from packager.graph.rewrite import map_bindings, tidy

NORMS = (OPERATOR, "nn.layer_norm", "nn.rms_norm")


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


def slice_before_transposes(module: tvm.IRModule, *, of_norms: bool = False) -> tvm.IRModule:
    """Slice in ``main`` what a transpose is of, where slices are all that reads it: reductions compute where they lie.

    ``of_norms``: only if a normalization reads one of these.
    """
    flow = Dataflow(module["main"])

    def rewrite(binding: Any) -> Iterator[Any]:
        slices, value = slice_of(binding.value), binding.value
        transposed = None if slices is None else flow.call(value.args[0], "permute_dims")
        if slices is not None and transposed is not None and _is_sliced(flow, value.args[0], of_norms):
            axes = axes_of(transposed) or ()
            cut = [place for place, part in enumerate(slices) if part != slice(None)]
            bounds = [[slices[place].start for place in cut], [slices[place].stop for place in cut]]
            sliced = relax.op.strided_slice(transposed.args[0], [axes[place] for place in cut], *bounds)
            sliced = relax.BlockBuilder().normalize(sliced)
            part = relax.DataflowVar(binding.var.name, sliced.ty)
            yield relax.VarBinding(part, sliced)
            value = relax.op.permute_dims(part, axes)
        yield relax.VarBinding(binding.var, value)

    return tidy(map_bindings(module, rewrite))


def _is_sliced(flow: Dataflow, variable: Any, of_norms: bool) -> bool:
    """Whether slices are all that reads a variable, and, of ``of_norms``, one of them is normalized."""
    readers = flow.readers(variable)
    if flow.is_result(variable) or any(slice_of(flow.value(reader)) is None for reader in readers):
        return False
    return not of_norms or any(_is_normalized(flow, reader) for reader in readers)


def _is_normalized(flow: Dataflow, variable: Any) -> bool:
    while len(readers := flow.readers(variable)) == 1:
        (variable,) = readers
        if flow.call(variable, *NORMS) is not None:
            return True
        if flow.call(variable, "squeeze", "reshape") is None:
            return False
    return False


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
            order = axes_of(view) or ()
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

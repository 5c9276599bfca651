"""Adds up the parts of a stack instead of a stack of them: branches that attention weighs, as in selective kernels.

SKNet (Li et al. 2019, arXiv:1903.06586) stacks the results of convolutions, sums them along the new axis, and sums them
again with a weight for each channel of each. A stack is a copy of all, and convolutions have no layout for it.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import wide_type
from packager.graph.dataflow import Dataflow, operator_of, same, shape_of
from packager.graph.rewrite import Bindings, as_type, map_bindings

# Parts of a stack that one kernel adds up.
MOST_PARTS = 8


def add_stacked(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite sums in ``main`` along the axis of a stack, or of its product with something. Leaves dead code."""
    flow = Dataflow(module["main"])

    def changed(binding: Any) -> list[Any]:
        call = binding.value
        if operator_of(call) != "sum" or call.attrs.keepdims or len(call.attrs.axis or ()) != 1:
            return [binding]
        made = Bindings(binding.var, "_part")
        parts = _parts(flow, call.args[0], int(call.attrs.axis[0]) % call.args[0].ty.ndim, made)
        if not parts or len(parts) > MOST_PARTS:
            return [binding]
        wide = wide_type(made.dtype)  # sums of halves are rounded once
        total = reduce(lambda a, b: made.bind(relax.op.add(a, b)), (as_type(made.bind, part, wide) for part in parts))
        return made.ended(relax.op.astype(total, made.dtype) if wide != made.dtype else total)

    return relax.transform.Normalize()(map_bindings(module, changed))


def _parts(flow: Dataflow, data: Any, axis: int, made: Bindings) -> list[Any]:
    """Return the slices of a stack along its axis without that, or of its product; none if there is no stack."""
    stacked = _stacked(flow, data, axis)
    product, shape = flow.call(data, "multiply"), shape_of(data)
    if stacked or product is None or shape is None:
        return stacked
    for stack, other in (product.args, reversed(product.args)):
        if shape_of(other) is None or stack.ty.ndim != len(shape):
            continue
        if (stacked := _stacked(flow, stack, axis)) and same(shape_of(stack), shape):
            factors = _stacked(flow, other, axis) or _slices(other, axis - data.ty.ndim, len(stacked), made)
            pairs = zip(stacked, factors, strict=True)
            return [made.bind(relax.op.multiply(part, factor)) for part, factor in pairs]
    return []


def _stacked(flow: Dataflow, variable: Any, axis: int) -> list[Any]:
    """Return what a variable stacks along a new axis; nothing if it does not."""
    call = flow.call(variable, "concat")
    fields = [] if call is None or not isinstance(call.args[0], relax.Tuple) else list(call.args[0].fields)
    if not fields or int(call.attrs.axis or 0) % variable.ty.ndim != axis:
        return []
    views = [flow.call(field, "expand_dims", "reshape") for field in fields]
    parts = [view.args[0] for view in views if view is not None]
    if len(parts) != len(fields):
        return []
    whole, shapes = shape_of(variable), [shape_of(part) for part in parts]
    if whole is None or None in shapes:
        return []
    wanted = (*whole[:axis], *whole[axis + 1 :])
    return parts if all(same(shape, wanted) for shape in shapes) else []


def _slices(factor: Any, axis: int, number: int, made: Bindings) -> list[Any]:
    """Return the slices along an axis, counted from the last one, without it; the factor itself if it has none."""
    shape = shape_of(factor)
    if not shape or len(shape) < -axis:
        return [factor] * number
    squeezed = [extent for place, extent in enumerate(shape) if place != axis + len(shape)]

    def slice_at(place: int) -> Any:
        taken = made.bind(relax.op.strided_slice(factor, [axis + len(shape)], [place], [place + 1]))
        return made.bind(relax.op.reshape(taken, squeezed))

    return [slice_at(place if shape[axis] == number else 0) for place in range(number)]

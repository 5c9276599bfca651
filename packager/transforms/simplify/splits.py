"""Slices instead of splits: a slice fuses with what reads it on a GPU, a split copies all parts.

Slices also follow convolutions to channels last.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, tidy
from packager.transforms.layout.layouts import CONVOLUTIONS

VIEWS = ("reshape", "squeeze", "expand_dims")
# What does not fuse with what makes its operands; normalizations read slices of whole rows.
OF_ROWS = ("matmul", *CONVOLUTIONS)
WHOLE = (*OF_ROWS, "nn.layer_norm")


def slice_splits(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the splits in ``main`` of which at most one part is needed in memory, or that a convolution reads."""
    flow = Dataflow(module["main"])
    parts: IdentityMap[Any] = IdentityMap()  # from a part to its slice
    for variable in flow.variables:
        if flow.call(variable, "split") is None or flow.is_result(variable):
            continue
        fields = flow.readers(variable)
        if not all(isinstance(flow.value(field), relax.TupleGetItem) for field in fields):
            continue
        is_image = any(_is_convolved(flow, field) for field in fields)
        split = flow.value(variable)
        rank = split.args[0].ty.ndim
        whole = WHOLE if int(split.attrs.axis) % rank == rank - 1 else OF_ROWS
        if is_image or sum(_is_needed(flow, field, whole) for field in fields) <= 1:
            for field in fields:
                sliced = _slice_of(flow, variable, flow.value(field).index)
                if sliced is not None:
                    parts[field] = sliced
    if not len(parts):
        return module
    rewritten = map_bindings(module, lambda b: [relax.VarBinding(b.var, parts[b.var]) if b.var in parts else b])
    return tidy(rewritten)


def _is_needed(flow: Dataflow, variable: Any, whole: tuple[str, ...]) -> bool:
    """Whether something reads it, or a view of it, that a slice does not fuse with: one of these operators."""
    if flow.is_result(variable):
        return True
    for reader in flow.readers(variable):
        name = operator_of(flow.value(reader))
        if not name or name in whole:
            return True
        if name in VIEWS and _is_needed(flow, reader, whole):
            return True
    return False


def _is_convolved(flow: Dataflow, variable: Any) -> bool:
    return any(flow.call(reader, *CONVOLUTIONS) is not None for reader in flow.readers(variable))


def _slice_of(flow: Dataflow, split: Any, index: int) -> Any | None:
    """Return the slice that is a part of a split, or None if its extents are unknown."""
    call = flow.value(split)
    axis, extents = int(call.attrs.axis), [shape_of(field) for field in split.ty.fields]
    if not all(extents):
        return None
    sizes = [shape[axis] for shape in extents if shape]
    if not all(isinstance(size, int) for size in sizes):
        return None
    begin = sum(sizes[:index])
    return relax.op.strided_slice(call.args[0], [axis], [begin], [begin + sizes[index]])

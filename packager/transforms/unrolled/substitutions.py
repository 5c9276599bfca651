"""Finds forward substitutions that exporters unrolled, a copy of all matrices in each of its steps."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, static_shape_of
from packager.graph.identity import IdentityMap
from packager.graph.recurrences.forward_substitution import forward_substitution
from packager.graph.rewrite import map_bindings, tidy
from packager.transforms.unrolled.written_slices import sliced, written_slice


def substitute_forward(module: tvm.IRModule, flow: Dataflow, fewest: int) -> tvm.IRModule:
    """Rewrite those of ``fewest`` rows or more in ``main``; ``packager.graph.recurrences.forward_substitution``."""
    replaced: IdentityMap[Any] = IdentityMap()
    for variable in flow.variables:
        extents = static_shape_of(variable) or ()
        if len(extents) < 2 or extents[-1] != extents[-2] or extents[-1] < fewest:
            continue
        before, index = variable, extents[-1] - 1
        while index > 0 and (earlier := _before(flow, before, index)) is not None:
            before, index = earlier, index - 1
        if index == 0:
            replaced[variable] = before
    if not len(replaced):
        return module

    def rewrite(binding: Any) -> list[Any]:
        source = replaced.get(binding.var)
        return [binding if source is None else relax.VarBinding(binding.var, forward_substitution(source))]

    return tidy(relax.transform.Normalize()(map_bindings(module, rewrite)))


def _before(flow: Dataflow, variable: Any, index: int) -> Any | None:
    """Return the matrices before the step that writes their rows ``index``; None if there is no such step."""
    choice, extents = written_slice(flow, variable), static_shape_of(variable) or ()
    rank, size = len(extents), extents[-1]
    if choice is None or choice[:2] != (rank - 2, index):
        return None
    _, _, written, before = choice
    concat = flow.call(_behind_views(flow, written), "concat")
    if concat is None or len(concat.args[0].fields) != 2:
        return None
    changed, rest = concat.args[0].fields
    changed = _behind_views(flow, changed)
    fits = _is_part(flow, rest, before, index, (index, size)) and _is_sum(flow, changed, before, index)
    return before if fits else None


def _is_sum(flow: Dataflow, variable: Any, before: Any, index: int) -> bool:
    """Whether it is a row up to ``index``, plus its product with the rows and columns up to there."""
    call = flow.call(variable, "add")
    for row, total in (call.args, reversed(call.args)) if call is not None else ():
        if not _is_part(flow, row, before, index, (0, index)):
            continue
        reduction, extents = flow.call(total, "sum"), static_shape_of(before) or ()
        if reduction is None or reduction.attrs.keepdims or len(reduction.attrs.axis or ()) != 1:
            return False
        product = flow.call(reduction.args[0], "multiply")
        along_rows = int(reduction.attrs.axis[0]) % len(extents) == len(extents) - 2
        if product is None or not along_rows:
            return False
        return any(
            _is_column(flow, column, row) and _is_corner(flow, corner, before, index)
            for column, corner in (product.args, reversed(product.args))
        )
    return False


def _is_column(flow: Dataflow, variable: Any, row: Any) -> bool:
    """Whether it is a row with an axis of one element behind."""
    extents = static_shape_of(row)
    call = flow.call(variable, "expand_dims", "reshape")
    return call is not None and call.args[0].same_as(row) and static_shape_of(variable) == (*(extents or ()), 1)


def _is_corner(flow: Dataflow, variable: Any, before: Any, size: int) -> bool:
    """Whether it is the first rows and columns of matrices."""
    extents = static_shape_of(before) or ()
    wanted = {len(extents) - 2: (0, size), len(extents) - 1: (0, size)}
    return sliced(flow, variable, before) == {axis: part for axis, part in wanted.items() if size < extents[axis]}


def _is_part(flow: Dataflow, variable: Any, before: Any, index: int, part: tuple[int, int]) -> bool:
    """Whether it is a part of the rows ``index`` of matrices, with no axis of rows."""
    extents = static_shape_of(before) or ()
    rank, size = len(extents), extents[-1]
    length, row = part[1] - part[0], variable
    if static_shape_of(variable) == (*extents[:-2], 1, length):
        return sliced(flow, variable, before) == {rank - 2: (index, index + 1), rank - 1: part}
    if static_shape_of(variable) != (*extents[:-2], length):
        return False
    if part != (0, size):
        row = getattr(flow.call(variable, "strided_slice"), "args", [None])[0]
        if static_shape_of(row) != (*extents[:-2], size) or sliced(flow, variable, row) != {rank - 2: part}:
            return False
    return sliced(flow, _behind_views(flow, row), before) == {rank - 2: (index, index + 1)}


def _behind_views(flow: Dataflow, variable: Any) -> Any:
    """Return what a variable has one axis of one element more or less than."""
    while (call := flow.call(variable, "expand_dims", "squeeze", "reshape")) is not None:
        shapes = [static_shape_of(each) or () for each in (variable, call.args[0])]
        if [e for e in shapes[0] if e != 1] != [e for e in shapes[1] if e != 1]:
            break
        variable = call.args[0]
    return variable

"""What a normalization of rows reads through: slices, transposes and reshapes that leave each row as it is.

A schedule of rows computes where a row begins, so that nothing is copied: queries and keys of a packed product are
normalized where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from packager.graph.dataflow import Dataflow, axes_of, extents_of, operator_of, same, slice_of
from packager.graph.normalize import OPERATOR, attributes_of_call
from packager.graph.rewrite import map_bindings, with_main
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE
from packager.lower.legalize.accumulate import layer_norm_of
from packager.lower.legalize.normalize import normalization_of

COPIES = ("permute_dims", "strided_slice")
VIEWS = (*COPIES, "reshape", "squeeze", "expand_dims")


def read_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Lower the normalizations of rows in ``main`` that are read through such views, each as one PrimFunc."""
    flow, builder = Dataflow(module["main"]), relax.BlockBuilder(module)

    def lowered(binding: Any) -> list[Any]:
        call, compute = binding.value, _normalization(binding.value)
        view = None if compute is None else _view(flow, call.args[0])
        if compute is None or view is None:
            return [binding]

        def of_source(source: te.Tensor, *others: te.Tensor) -> te.Tensor:
            return compute(view.of(source), *others)

        name = f"{view.name}_{operator_of(call).rpartition('.')[2]}"
        fusable = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        value = builder.call_te(of_source, view.source, *call.args[1:], primfunc_name_hint=name, primfunc_attrs=fusable)
        return [relax.VarBinding(binding.var, value)]

    main = map_bindings(module, lowered)["main"]
    return relax.transform.Normalize()(with_main(builder.get(), main))


def _normalization(call: Any) -> Callable[..., te.Tensor] | None:
    """Return what a call computes, if it normalizes rows."""
    if operator_of(call) == OPERATOR:
        attributes = attributes_of_call(call.attrs)
        return normalization_of(attributes) if attributes.of_rows(call.args[0].ty.ndim) else None
    if operator_of(call) != "nn.layer_norm":
        return None
    rank = call.args[0].ty.ndim
    return layer_norm_of(call) if [int(axis) % rank for axis in call.attrs.axes] == [rank - 1] else None


@dataclass(frozen=True)
class _View:
    """A ``source``, and the calls that view it, the last first."""

    source: Any
    calls: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The operators from the source on, as part of the name of a function."""
        return "_".join(operator_of(call).replace("permute_dims", "transpose") for call in self.calls[::-1])

    def of(self, tensor: te.Tensor) -> te.Tensor:
        """Return the view of the source's tensor."""
        for call in self.calls[::-1]:
            axes, slices = axes_of(call), slice_of(call)
            if axes is not None:
                tensor = topi.transpose(tensor, axes)
            elif slices is not None:
                tensor = _sliced(tensor, [part.start or 0 for part in slices], extents_of(call))
            else:
                tensor = _reshaped(tensor, extents_of(call) or ())
        return tensor


def _view(flow: Dataflow, data: Any) -> _View | None:
    """Return what rows are views of; None if none of these, which nothing else reads, would be a copy."""
    source, calls, moved = data, [], 0
    while flow.is_read_once(source) and _keeps_rows(call := flow.value(source)):
        calls.append(call)
        source = call.args[0]
        moved = len(calls) if operator_of(call) in COPIES else moved
    return _View(calls[moved - 1].args[0], tuple(calls[:moved])) if moved else None


def _keeps_rows(call: Any) -> bool:
    """Whether a call is a view whose last axis is that of its operand, as a whole or some of it."""
    if operator_of(call) not in VIEWS:
        return False
    axes, slices = axes_of(call), slice_of(call)
    if axes is not None:
        return axes[-1] == len(axes) - 1
    if operator_of(call) == "strided_slice":
        return slices is not None and all((part.start or 0) >= 0 for part in slices)
    return same((extents_of(call.args[0]) or ())[-1:], (extents_of(call) or ())[-1:])


def _reshaped(tensor: te.Tensor, shape: tuple[Any, ...]) -> te.Tensor:
    """Return a tensor in another shape with the same last axis, whose index stays a variable: schedules look for it."""
    before, after = list(tensor.shape[:-1]), list(shape[:-1])
    long = [[axis for axis, extent in enumerate(extents) if not same(extent, 1)] for extents in (before, after)]
    same_rows = same(tuple(before[axis] for axis in long[0]), tuple(after[axis] for axis in long[1]))

    def element(*index: Any) -> Any:
        places: list[Any] = [tirx.IntImm("int64", 0)] * len(before)
        if same_rows:
            for axis, place in zip(*long, strict=True):
                places[axis] = index[place]
        else:
            row = reduce(lambda total, axis: total * after[axis] + index[axis], long[1], tirx.IntImm("int64", 0))
            for axis in reversed(long[0]):
                places[axis] = row if axis == long[0][0] else tirx.floormod(row, before[axis])
                row = tirx.floordiv(row, before[axis])
        return tensor(*places, index[-1])

    return te.compute(shape, element, name="reshaped")


def _sliced(tensor: te.Tensor, begins: list[int], shape: Any) -> te.Tensor:
    return te.compute(
        shape, lambda *index: tensor(*(at + begin for at, begin in zip(index, begins, strict=True))), name="sliced"
    )

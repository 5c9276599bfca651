"""Has scatters and gathers of whole slices read an index for each slice, as it was before it was broadcast.

torch writes sums by index, as in nets over graphs, and gathers of rows with indices that are expanded along the rows:
tensors of integers that are larger than the data. Such a scatter is the operator ``packager.scatter_slices``: as
``scatter_elements``, with indices of extent 1 on all axes after the scattered one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from packager.graph.dataflow import operator_of, same, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.own_operators import register
from packager.graph.rewrite import map_bindings

SCATTER_SLICES = "relax.packager.scatter_slices"


def narrow_indices(module: tvm.IRModule, *, replaced: bool = True) -> tvm.IRModule:
    """Rewrite ``scatter_elements`` and ``gather_elements`` of ``main`` whose indices are the same after the axis.

    Scatters that replace elements only if ``replaced``. Leaves dead code.
    """
    made: IdentityMap[Any] = IdentityMap()

    def narrow(binding: Any) -> list[Any]:
        made[binding.var] = binding.value
        call = _by_slices(binding.value, made, replaced=replaced)
        return [binding if call is None else relax.VarBinding(binding.var, call)]

    return relax.transform.Normalize()(map_bindings(module, narrow))


def _by_slices(value: Any, made: IdentityMap[Any], *, replaced: bool) -> Any | None:
    """Return what computes the same from an index for each slice, or None."""
    operator = operator_of(value)
    if operator not in ("scatter_elements", "gather_elements"):
        return None
    shape, full = shape_of(value.args[0]), shape_of(value.args[1])
    if shape is None or full is None or not isinstance(value.args[1], relax.Var):
        return None
    axis = int(value.attrs.axis) % len(shape)
    wide: Any = made.get(value.args[1])
    own = shape_of(wide.args[0]) if operator_of(wide) == "broadcast_to" else None
    if own is None or len(own) != len(full) or not same(own[: axis + 1], full[: axis + 1]):
        return None
    if axis == len(full) - 1 or own[axis + 1 :] != (1,) * len(own[axis + 1 :]):
        return None
    others = (*shape[:axis], *shape[axis + 1 :])
    if not same(others, (*full[:axis], *full[axis + 1 :])):
        return None
    if operator == "scatter_elements":
        if str(value.attrs.reduction) == "update" and not replaced:
            return None
        data, _, updates = value.args
        attributes = tvm.ir.make_node("ir.DictAttrs", axis=axis, reduction=str(value.attrs.reduction))
        return relax.Call(Op.get(SCATTER_SLICES), [data, wide.args[0], updates], attributes)
    if any(extent != 1 for extent in shape[:axis]):
        return None
    return relax.op.take(value.args[0], relax.op.reshape(wide.args[0], [full[axis]]), axis, mode="wrap")


def _infer(call: Any, _builder: Any) -> Any:
    return call.args[0].ty


register(SCATTER_SLICES, "Scatter of slices, by an index each", ("data", "indices", "updates"), _infer)

"""Lower gathers for GPUs by functions that fuse with what makes their indices and with what reads their slices."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from packager.graph.dataflow import Dataflow, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, map_operands
from packager.ir.pattern_kinds import BROADCAST, INJECTIVE
from packager.transforms.clamp_indices import legalize_take

SUMS = ("sum", "mean")


def repeat_lookups(module: tvm.IRModule) -> tvm.IRModule:
    """Give each sum in ``main`` of what is looked up, or of its squares, a lookup of its own: both are one kernel."""
    flow = Dataflow(module["main"])
    copied: IdentityMap[Any] = IdentityMap()  # from a reader to the lookup that it has alone

    def is_summed(lookup: Any, reader: Any) -> bool:
        call = flow.value(reader)
        if operator_of(call) in SUMS:
            return True
        squares = operator_of(call) == "multiply" and all(each.same_as(lookup) for each in call.args)
        return squares and all(operator_of(flow.value(each)) in SUMS for each in flow.readers(reader))

    for variable in flow.variables:
        readers = flow.readers(variable)
        if flow.call(variable, "take") is None or len(readers) < 2:
            continue
        for reader in readers:
            if is_summed(variable, reader):
                copied[reader] = variable

    def changed(binding: Any) -> list[Any]:
        lookup = copied.get(binding.var)
        if lookup is None:
            return [binding]
        again = type(lookup)(lookup.name, lookup.ty)
        value = map_operands(binding.value, lambda operand: again if operand.same_as(lookup) else operand)
        return [relax.VarBinding(again, flow.value(lookup)), relax.VarBinding(binding.var, value)]

    return relax.transform.Normalize()(map_bindings(module, changed)) if len(copied) else module


def legalize_fused_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``take`` with numpy's semantics of negative indices; what is beyond the extent is clamped later."""
    if call.attrs.axis is None or call.attrs.mode not in ("fast", "wrap"):
        return legalize_take(builder, call)

    def gather(data: Any, indices: Any) -> Any:
        axis, rank = int(call.attrs.axis) % len(data.shape), len(indices.shape)
        extent = data.shape[axis]

        def element(*at: Any) -> Any:
            index = indices(*at[axis : axis + rank])
            if str(index.ty) == "int64" and isinstance(extent, tirx.IntImm) and int(extent) < 1 << 31:
                index = index.astype("int32")  # of several lookups at a time: all are in registers
            if str(index.ty).startswith("int"):
                index = tirx.if_then_else(index < 0, index + tirx.Cast(index.ty, extent), index)
            return data(*at[:axis], index, *at[axis + rank :])

        return te.compute((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), element, name="take")

    # TVM does not see it: where an element is read from is data. Sums read through what is like a broadcast only.
    is_constant = builder.lookup_binding(call.args[0]) is None
    attributes = {"op_pattern": BROADCAST if is_constant else INJECTIVE}
    return builder.call_te(gather, *call.args, primfunc_name_hint="take", primfunc_attrs=attributes)

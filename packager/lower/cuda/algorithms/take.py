"""Lower gathers for GPUs by functions that fuse with what makes their indices and with what reads their slices."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from packager.graph.dataflow import Dataflow, operator_of, variables_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_bindings, map_operands
from packager.ir.pattern_kinds import BROADCAST, INJECTIVE
from packager.transforms.clamp_indices import legalize_take

SUMS = ("sum", "mean")
# What indices are computed by: from the end if they are negative, of smaller tensors.
OF_INDICES = ("broadcast_to", "expand_dims", "squeeze", "reshape", "astype", "less", "add", "where")


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


def repeat_indices(module: tvm.IRModule) -> tvm.IRModule:
    """Give each gather of elements in ``main`` the computation of its indices, where these are broadcast.

    Its kernel reads few indices, each by many threads at once, in place of as many as there are elements.
    """
    flow = Dataflow(module["main"])

    def computed(variable: Any) -> list[Any]:
        """Return the variables that elementwise operators and broadcasts make on the way to one, in order."""
        value = flow.value(variable)
        if operator_of(value) not in OF_INDICES:
            return []
        before = [each for operand in variables_of(value) for each in computed(operand)]
        return [*IdentitySet([*before, variable])]

    def changed(binding: Any) -> list[Any]:
        call = binding.value
        if operator_of(call) != "gather_elements" or flow.is_read_once(call.args[1]):
            return [binding]
        made = computed(call.args[1])
        if not any(operator_of(flow.value(each)) == "broadcast_to" for each in made):
            return [binding]
        again = IdentityMap((each, type(each)(each.name, each.ty)) for each in made)

        def renamed(value: Any) -> Any:
            return map_operands(value, lambda operand: again.get(operand, operand))

        repeated = [relax.VarBinding(again[each], renamed(flow.value(each))) for each in made]
        return [*repeated, relax.VarBinding(binding.var, renamed(call))]

    return relax.transform.Normalize()(map_bindings(module, changed))


def legalize_fused_take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``take`` with numpy's semantics of negative indices; what is beyond the extent is clamped later."""
    if call.attrs.axis is None or call.attrs.mode not in ("fast", "wrap"):
        return legalize_take(builder, call)

    def gather(data: Any, indices: Any) -> Any:
        axis, rank = int(call.attrs.axis) % len(data.shape), len(indices.shape)

        def element(*at: Any) -> Any:
            index = _index(indices(*at[axis : axis + rank]), data.shape[axis])
            return data(*at[:axis], index, *at[axis + rank :])

        return te.compute((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), element, name="take")

    # TVM does not see it: where an element is read from is data. Sums read through what is like a broadcast only.
    is_constant = builder.lookup_binding(call.args[0]) is None
    attributes = {"op_pattern": BROADCAST if is_constant else INJECTIVE}
    return builder.call_te(gather, *call.args, primfunc_name_hint="take", primfunc_attrs=attributes)


def legalize_fused_gather(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``gather_elements``, and ``gather_nd`` of tuples of a known length, likewise."""
    is_nd = operator_of(call) == "gather_nd"
    if is_nd and not isinstance(call.args[1].ty.shape.values[-1], tirx.IntImm):
        return call.op.get_attr("FLegalize")(builder, call)

    def gather(data: Any, indices: Any) -> Any:
        axis = int(call.attrs.axis) % len(data.shape)

        def element(*at: Any) -> Any:
            return data(*at[:axis], _index(indices(*at), data.shape[axis]), *at[axis + 1 :])

        return te.compute(indices.shape, element, name="gather")

    def gather_tuples(data: Any, indices: Any) -> Any:
        batch, length = int(call.attrs.batch_dims), int(indices.shape[-1])
        kept = len(indices.shape) - 1

        def element(*at: Any) -> Any:
            found = (_index(indices(*at[:kept], n), data.shape[batch + n]) for n in range(length))
            return data(*at[:batch], *found, *at[kept:])

        return te.compute((*indices.shape[:-1], *data.shape[batch + length :]), element, name="gather")

    attributes = {"op_pattern": INJECTIVE}
    compute = gather_tuples if is_nd else gather
    return builder.call_te(compute, *call.args, primfunc_name_hint="gather", primfunc_attrs=attributes)


def _index(index: Any, extent: Any) -> Any:
    """Return an index that may be negative, from the end, as one from 0 on."""
    if not str(index.ty).startswith("int"):
        return index
    return tirx.if_then_else(index < 0, index + tirx.Cast(index.ty, extent), index)

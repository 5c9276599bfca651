"""Lets what reads half precision widen it itself, and elementwise operators read parts of a tensor where they lie.

Arithmetic of half precision is between casts. A cast that several operators read would end the kernel of what it reads,
which would write float32, and is no part of the product whose epilogue adds it. A slice that several read would be a
copy, as the queries of one product of all that attention reads, which something else reads, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, is_widening, operator_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_bindings, map_operands
from packager.transforms.layout.layouts import ELEMENTWISE

# What TVM fuses with the elementwise functions that make its operands.
READERS = ELEMENTWISE | {"sum"}
_VIEWS = ("reshape", "permute_dims")


def repeat_casts(module: tvm.IRModule, readers: Container[str] = READERS) -> tvm.IRModule:
    """Give each of these readers of a cast from half precision to float32 in ``main`` a cast of its own."""
    return _repeat(module, readers, lambda _operand, call: operator_of(call) == "astype" and is_widening(call))


def repeat_views(module: tvm.IRModule) -> tvm.IRModule:
    """Give each sum that reads such a cast one of its own: the epilogue of a product widens its residual.

    And each elementwise operator that reads a slice, if views read it, too, as those of heads.
    """
    flow = Dataflow(module["main"])
    viewed = IdentitySet(view.args[0] for each in flow.variables if (view := flow.call(each, *_VIEWS)) is not None)
    module = _repeat(
        module, ELEMENTWISE, lambda operand, call: operator_of(call) == "strided_slice" and operand in viewed
    )
    return repeat_casts(module, ("add",))


def _repeat(module: tvm.IRModule, readers: Container[str], wanted: Callable[[Any, Any], bool]) -> tvm.IRModule:
    """Give each of these readers of calls that are wanted one of its own, if others read it, too."""
    flow = Dataflow(module["main"])

    def repeated(operand: Any) -> bool:
        call = flow.value(operand)
        several = len(flow.readers(operand)) > 1 or flow.is_result(operand)
        return isinstance(call, relax.Call) and several and wanted(operand, call)

    def changed(binding: Any) -> list[Any]:
        if operator_of(binding.value) not in readers:
            return [binding]
        own: IdentityMap[Any] = IdentityMap()
        for operand in binding.value.args:
            if isinstance(operand, relax.Var) and operand not in own and repeated(operand):
                own[operand] = type(operand)(operand.name, operand.ty)
        if not len(own):
            return [binding]
        calls = [relax.VarBinding(own[operand], flow.value(operand)) for operand in own]
        value = map_operands(binding.value, lambda operand: own.get(operand, operand))
        return [*calls, relax.VarBinding(binding.var, value)]

    return relax.transform.Normalize()(map_bindings(module, changed))

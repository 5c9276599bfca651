"""Lets what reads half precision widen it itself, in place of one tensor that was widened to float32 for several.

Arithmetic of half precision is between casts. A cast that several operators read would end the kernel of what it reads,
which would write float32, and is no part of the product whose epilogue adds it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, is_widening, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, map_operands
from packager.transforms.layout.layouts import ELEMENTWISE

# What TVM fuses with the elementwise functions that make its operands.
READERS = ELEMENTWISE | {"sum"}


def repeat_casts(module: tvm.IRModule, readers: Container[str] = READERS) -> tvm.IRModule:
    """Give each of these readers of a cast from half precision to float32 in ``main`` a cast of its own."""
    flow = Dataflow(module["main"])

    def widened(operand: Any) -> Any:
        """Return the cast that an operand is, if others read it, too; else None."""
        cast = flow.call(operand, "astype")
        several = cast is not None and (len(flow.readers(operand)) > 1 or flow.is_result(operand))
        return cast if several and is_widening(cast) else None

    def changed(binding: Any) -> list[Any]:
        if operator_of(binding.value) not in readers:
            return [binding]
        own: IdentityMap[Any] = IdentityMap()
        for operand in binding.value.args:
            if isinstance(operand, relax.Var) and operand not in own and widened(operand) is not None:
                own[operand] = type(operand)(operand.name, operand.ty)
        if not len(own):
            return [binding]
        casts = [relax.VarBinding(own[operand], flow.value(operand)) for operand in own]
        value = map_operands(binding.value, lambda operand: own.get(operand, operand))
        return [*casts, relax.VarBinding(binding.var, value)]

    return relax.transform.Normalize()(map_bindings(module, changed))


def repeat_residual_casts(module: tvm.IRModule) -> tvm.IRModule:
    """Give each sum that reads such a cast one of its own: the epilogue of a product widens its residual."""
    return repeat_casts(module, ("add",))

"""Decomposes products of groups of rows that no backend multiplies as they are."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants
from packager.graph.identity import IdentityMap
from packager.graph.products.grouped import NAME, decompose
from packager.graph.rewrite import map_operands, rebuild_main, with_main


def decompose_grouped(module: tvm.IRModule, num_inputs: int, *, kept: bool) -> tvm.IRModule:
    """Decompose ``packager.grouped_matmul`` in ``main``; if some are ``kept``, those whose matrices data give."""
    main = module["main"]
    flow = Dataflow(main, main.params[num_inputs:])
    if not any(_is_grouped(flow.value(variable)) for variable in flow.variables):
        return module
    constants = computed_from_constants(main, num_inputs)
    builder = relax.BlockBuilder()
    made: IdentityMap[Any] = IdentityMap()

    def renamed(expr: Any) -> Any:
        return made.get(expr, expr) if isinstance(expr, relax.Var) else map_operands(expr, renamed)

    def bind(binding: Any) -> None:
        value = renamed(binding.value)
        if _is_grouped(value) and not (kept and binding.value.args[1] in constants):
            value = decompose(builder, *value.args)
        made[binding.var] = builder.emit(value, binding.var.name)

    return with_main(module, rebuild_main(builder, main, bind, renamed))


def _is_grouped(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == NAME

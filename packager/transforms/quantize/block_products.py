"""Makes one operator of a product and the weights that are dequantized for it, so that they stay packed.

Without it the weights are folded: they are dequantized at build time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from packager.graph.block_weights import DEQUANTIZE, block_matmul, format_of
from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_operands, rebuild_main, with_main

# Of the largest number in a block, two bytes hold more than results of float16 do.
DATA_BYTES = {"float32": 3, "float16": 2}


def keep_block_weights(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Replace products with transposed, dequantized constant weights in ``main``; they are of float32 then."""
    main = module["main"]
    flow = Dataflow(main, main.params[num_inputs:])
    if not any(_name(flow.value(variable)) == DEQUANTIZE for variable in flow.variables):
        return module
    constants = computed_from_constants(main, num_inputs)
    builder = relax.BlockBuilder()
    made: IdentityMap[Any] = IdentityMap()

    def renamed(expr: Any) -> Any:
        return made.get(expr, expr) if isinstance(expr, relax.Var) else map_operands(expr, renamed)

    def bind(binding: Any) -> None:
        weights = _weights(flow, constants, binding.value)
        value = renamed(binding.value)
        if weights is not None:
            dtype = str(value.args[0].ty.dtype)
            data = _as_type(builder, value.args[0], "float32")
            packed, scales, zeros = map(renamed, weights.args)
            form = format_of(weights.attrs)
            form = replace(form, data_bytes=min(form.data_bytes, DATA_BYTES[dtype]))
            product = block_matmul(data, packed, scales, zeros, form)
            value = product if dtype == "float32" else relax.op.astype(builder.emit(product), dtype)
        made[binding.var] = builder.emit(value, binding.var.name)

    return with_main(module, rebuild_main(builder, main, bind, renamed))


def _as_type(builder: relax.BlockBuilder, value: Any, dtype: str) -> Any:
    return value if str(value.ty.dtype) == dtype else builder.emit(relax.op.astype(value, dtype))


def _weights(flow: Dataflow, constants: IdentitySet, value: Any) -> Any:
    """Return the call that dequantizes the weights of a product, or None."""
    if operator_of(value) != "matmul" or str(value.args[0].ty.dtype) not in DATA_BYTES:
        return None
    turned = _before_cast(flow, value.args[1])
    if operator_of(turned) != "permute_dims" or [int(axis) for axis in turned.attrs.axes or (1, 0)] != [1, 0]:
        return None
    weights = _before_cast(flow, turned.args[0])
    if _name(weights) != DEQUANTIZE or not all(operand in constants for operand in weights.args):
        return None
    return weights


def _before_cast(flow: Dataflow, operand: Any) -> Any:
    """Return the value of an operand, or of what a cast makes it from."""
    value = flow.value(operand)
    return flow.value(value.args[0]) if operator_of(value) == "astype" else value


def _name(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))

"""Converts matmuls of dequantized float8 operands to float8 matmuls with scaled results.

    sum (sx x) (sw w)  =  sx sw (sum x w)

with a per-tensor scale of the data, and a per-tensor or per-column scale of the weights. Accumulates in float32, like
the model. Those that a model computes in half precision are rounded to it at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, axes_of, operator_of, scalar_of, static_shape_of
from packager.graph.identity import IdentityMap
from packager.graph.narrow_types import NATIVE
from packager.graph.rewrite import map_operands, rebuild_main, with_main

ALIGNMENT = 16
"""Depth and columns must be multiples of it; other matmuls stay in float32."""


@dataclass(frozen=True)
class _Operand:
    """A float8 operand, its scale, and whether it is transposed."""

    value: Any
    scale: Any = None
    transposed: bool = False


def convert_float8_matmuls(module: tvm.IRModule, num_inputs: int, *, halves: bool = False) -> tvm.IRModule:
    """Convert matmuls of dequantized float8 operands in ``main``; those of half precision too if ``halves``."""
    main = module["main"]
    flow = Dataflow(main, main.params[num_inputs:])
    if not any(str(getattr(v.ty, "dtype", "")) == NATIVE for v in (*flow.variables, *main.params)):
        return module
    builder = relax.BlockBuilder()
    made: IdentityMap[Any] = IdentityMap()

    def bind(binding: Any) -> None:
        variable, value = binding.var, binding.value
        product = _product(flow, variable, halves) if operator_of(value) == "matmul" else None
        if product is not None:
            made[variable] = _emitted(builder, product, made, variable)
        else:
            made[variable] = builder.emit(_renamed(value, made), variable.name)

    return with_main(module, rebuild_main(builder, main, bind, lambda result: _renamed(result, made)))


def _renamed(expr: Any, made: IdentityMap[Any]) -> Any:
    if isinstance(expr, relax.Var):
        return made.get(expr, expr)
    return map_operands(expr, lambda operand: _renamed(operand, made))


def _product(flow: Dataflow, variable: Any, halves: bool) -> tuple[_Operand, _Operand] | None:
    """Return the operands of a convertible float8 matmul, or None."""
    data, weight = (_operand(flow, argument) for argument in flow.value(variable).args)
    dtype = str(variable.ty.dtype)
    if data is None or weight is None or data.transposed or not (dtype == "float32" or (halves and dtype in HALVES)):
        return None
    shape = static_shape_of(weight.value)
    if shape is None or len(shape) != 2 or any(extent % ALIGNMENT for extent in shape):
        return None
    if not flow.is_constant(weight.value):
        return None
    columns = 0 if weight.transposed else 1
    along = {(shape[columns],), (1, shape[1])} if columns else {(shape[0], 1)}
    if not _is_number(data.scale) or not (_is_number(weight.scale) or static_shape_of(weight.scale) in along):
        return None
    known = all(flow.is_constant(_source(flow, o.scale)) for o in (data, weight) if isinstance(o.scale, relax.Var))
    return (data, weight) if known else None


def _source(flow: Dataflow, scale: Any) -> Any:
    """Return the source of a scale, through views."""
    while (call := flow.call(scale, "reshape")) is not None:
        scale = call.args[0]
    return scale


def _is_number(scale: Any) -> bool:
    """Whether a scale is per tensor; None means 1."""
    if scale is None:
        return True
    extents = static_shape_of(scale)
    return extents is not None and all(extent == 1 for extent in extents)


def _emitted(builder: Any, product: tuple[_Operand, _Operand], made: IdentityMap[Any], variable: Any) -> Any:
    """Emit a scaled float8 matmul that stands for ``variable``; return its result."""
    data, weight = product
    right = _renamed(weight.value, made)
    if weight.transposed:
        right = builder.emit(relax.op.permute_dims(right))
    result = builder.emit(relax.op.matmul(_renamed(data.value, made), right, out_dtype="float32"))
    for operand in product:
        scale = operand.scale
        if scale is None:
            continue
        if not isinstance(scale, GenericConst) and static_shape_of(scale) != ():
            scale = builder.emit(relax.op.reshape(_renamed(scale, made), (-1,)))
        result = builder.emit(relax.op.multiply(result, _wide(builder, _renamed(scale, made))), variable.name)
    dtype = str(variable.ty.dtype)
    return result if dtype == "float32" else builder.emit(relax.op.astype(result, dtype), variable.name)


def _wide(builder: Any, scale: Any) -> Any:
    """Return a scale in float32."""
    if str(scale.ty.dtype) == "float32":
        return scale
    number = scalar_of(scale)
    return builder.emit(relax.op.astype(scale, "float32")) if number is None else relax.const(number, "float32")


def _operand(flow: Dataflow, expr: Any) -> _Operand | None:
    transposed = False
    call = flow.call(expr, "permute_dims") if isinstance(expr, relax.Var) else None
    if call is not None and axes_of(call) == (1, 0):
        expr, transposed = call.args[0], True
    scale = None
    call = flow.call(expr, "multiply") if isinstance(expr, relax.Var) else None
    if call is not None:
        first, second = call.args
        expr, scale = (second, first) if _widened(flow, first) is None else (first, second)
    value = _widened(flow, expr)
    return None if value is None else _Operand(value, scale, transposed)


def _widened(flow: Dataflow, expr: Any) -> Any:
    """Return the float8 tensor that ``expr`` is a cast of, or None."""
    call = flow.call(expr, "astype") if isinstance(expr, relax.Var) else None
    return call.args[0] if call is not None and str(call.args[0].ty.dtype) == NATIVE else None

"""Folds scales and shifts of rows into the constant matrices that these are multiplied by.

``(x * s + b) W`` is ``x (s W) + b W``: batch norms behind activations, and before products, as residual nets of tables
have them (Gorishniy et al. 2021, arXiv:2106.11959). Of convolutions those without padding, which ``b`` would have to
fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, shape_of, static_shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import Bindings, map_bindings, rebuild_call, tidy

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
# What computes the rows of a normalization that is written out, whose kernels scale and shift at no cost.
_NORMALIZED = ("multiply", "divide")


@dataclass(frozen=True)
class _Rows:
    """``source * scale + shift``; both are constants, an element for each channel."""

    source: Any
    scale: Any
    shift: Any


def scale_matrices(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite the products of ``main`` that read such rows of float32; parameters after ``num_inputs`` are constant."""
    main = module["main"]
    flow, constants = Dataflow(main), computed_from_constants(main, num_inputs)
    products: IdentityMap[_Rows] = IdentityMap()
    for variable in flow.variables:
        rows = None if flow.is_result(variable) else _rows(flow, constants, variable)
        readers = [] if rows is None else flow.readers(variable)
        if rows is not None and all(_takes(flow, constants, reader, variable, rows) for reader in readers):
            for reader in readers:
                products[reader] = rows
    if not len(products):
        return module

    def rewrite(binding: Any) -> list[Any]:
        rows = products.get(binding.var)
        return [binding] if rows is None else _written(binding, rows)

    return tidy(map_bindings(module, rewrite))


def _rows(flow: Dataflow, constants: IdentitySet, variable: Any) -> _Rows | None:
    """Return what a variable is, if it is scaled and shifted."""
    shift = _with_constant(flow, constants, variable, "add")
    scale = _with_constant(flow, constants, shift[0], "multiply") if shift and flow.is_read_once(shift[0]) else None
    if shift is None or scale is None or operator_of(flow.value(scale[0])) in _NORMALIZED:
        return None
    return _Rows(scale[0], scale[1], shift[1])


def _with_constant(flow: Dataflow, constants: IdentitySet, variable: Any, operator: str) -> tuple[Any, Any] | None:
    """Return the operands of an operator, of which the second is a vector of constants."""
    call = flow.call(variable, operator)
    if call is None or str(variable.ty.dtype) != "float32":
        return None
    left, right = call.args if call.args[1] in constants else reversed(call.args)
    whole = right in constants and left not in constants and same(shape_of(left), shape_of(variable))
    return (left, right) if whole and str(right.ty.dtype) == "float32" else None


def _takes(flow: Dataflow, constants: IdentitySet, reader: Any, variable: Any, rows: _Rows) -> bool:
    """Whether a product of a variable has a matrix of the model with an axis for what scales its rows."""
    call = flow.value(reader)
    operator = operator_of(call)
    if operator not in ("matmul", *_CONVOLUTIONS) or not call.args[0].same_as(variable):
        return False
    weight, rank = call.args[1], variable.ty.ndim
    extents, own = static_shape_of(weight), weight
    while (view := flow.call(own, "permute_dims", "reshape")) is not None:
        own = view.args[0]
    # What is computed from packed weights backends match as it is.
    if extents is None or weight not in constants or flow.value(own) is not None:
        return False
    if operator == "matmul":
        channels, axis = extents[0], rank - 1
        fits = len(extents) == 2
    else:
        channels, axis = extents[1], 1
        attributes = call.attrs
        plain = str(attributes.data_layout)[:2] == "NC" and str(attributes.kernel_layout)[:2] == "OI"
        fits = plain and int(attributes.groups) == 1 and not any(map(int, attributes.padding))
    return fits and all(_is_vector(vector, channels, axis, rank) for vector in (rows.scale, rows.shift))


def _is_vector(vector: Any, channels: int, axis: int, rank: int) -> bool:
    """Whether a constant, in a tensor of this rank, differs along this axis alone, with an element for each channel."""
    extents = static_shape_of(vector)
    if extents is None or len(extents) > rank:
        return False
    whole = (1,) * (rank - len(extents)) + extents
    return whole[axis] == math.prod(whole) == channels


def _written(binding: Any, rows: _Rows) -> list[Any]:
    call, made = binding.value, Bindings(binding.var)
    weight, rank = call.args[1], call.args[1].ty.ndim
    is_matrix = operator_of(call) == "matmul"
    axis, summed = (0, [0]) if is_matrix else (1, [*range(1, rank)])
    extents = [int(extent) if at == axis else 1 for at, extent in enumerate(weight.ty.shape.values)]

    def times(vector: Any) -> Any:
        return made.bind(relax.op.multiply(weight, made.bind(relax.op.reshape(vector, extents))))

    shift = made.bind(relax.op.sum(times(rows.shift), summed))
    if not is_matrix:
        shift = made.bind(relax.op.reshape(shift, [-1, *[1] * (rank - 2)]))
    product = made.bind(rebuild_call(call, rows.source, times(rows.scale)))
    return made.ended(relax.op.add(product, shift))

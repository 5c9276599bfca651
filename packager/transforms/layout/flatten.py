"""Folds a transpose of what a reshape makes columns into the weights of the next matmul.

Classifiers flatten NCHW, so after conversion to channels last a transpose precedes the first dense layer. Attention may
have its heads side by side or interleaved.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_bindings, rebuild_call


def fold_flatten_transpose(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite ``matmul(reshape(permute_dims(x)), w)`` in ``main`` to ``matmul(reshape(x), permuted w)``.

    ``w`` is a constant matrix [K, M]; the reshape is from [..., *columns] to [..., K]. Other axes than those of columns
    are transposed as before. Leaves dead transposes.
    """
    main = module["main"]
    flow, constants = Dataflow(main), computed_from_constants(main, num_inputs)
    products = IdentityMap(
        (variable, product)
        for variable in flow.variables
        if (product := _product(flow, constants, flow.value(variable))) is not None
    )
    if not products:
        return module

    def rewrite(binding: Any) -> list[Any]:
        return [relax.VarBinding(binding.var, products[binding.var]) if binding.var in products else binding]

    return relax.transform.Normalize()(map_bindings(module, rewrite))


def _product(flow: Dataflow, constants: IdentitySet, call: Any) -> relax.Call | None:
    """Return the rewritten matmul, or None if ``call`` does not match."""
    if operator_of(call) != "matmul" or call.args[1] not in constants:
        return None
    flat = flow.call(call.args[0], "reshape")
    moved = None if flat is None else flow.call(flat.args[0], "permute_dims")
    if moved is None or moved.attrs.axes is None or len(flow.readers(call.args[0])) > 1:
        return None
    axes, weight = [int(axis) for axis in moved.attrs.axes], shape_of(call.args[1])
    permuted, rows = shape_of(moved), shape_of(flat)
    if not permuted or not rows or not weight or len(weight) != 2:
        return None
    count = _columns(permuted, rows[-1])
    if count is None:
        return None
    lead, columns = axes[:-count], axes[-count:]
    if columns == sorted(columns) or not same(prod(permuted[:-count]), prod(rows[:-1])):
        return None
    source = moved.args[0]
    if [*lead, *sorted(columns)] != list(range(len(axes))):
        source = relax.op.permute_dims(source, [*lead, *sorted(columns)])
    # Axis of the weights for each axis of the columns in the order of the source; those of the result are last.
    order = [columns.index(axis) for axis in sorted(columns)]
    matrix = relax.op.permute_dims(relax.op.reshape(call.args[1], (*permuted[-count:], weight[1])), [*order, count])
    return rebuild_call(call, relax.op.reshape(source, flat.ty.shape), relax.op.reshape(matrix, weight))


def _columns(extents: tuple[Any, ...], length: Any) -> int | None:
    """Return how many of the last axes have ``length`` elements together; None if none, or of a symbolic extent."""
    for count in range(1, len(extents) + 1):
        if not all(isinstance(extent, int) for extent in extents[-count:]):
            return None
        if prod(extents[-count:]) == length:
            return count
    return None

"""Folds the NHWC->NCHW transpose before a flatten into the weights of the next matmul.

Classifiers flatten NCHW, so after conversion to channels last a transpose precedes the first dense layer.
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

    ``w`` is a constant matrix [K, M]; the reshape is from [N, ...] to [N, K]. Leaves dead transposes.
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
    image, permuted, rows = shape_of(moved.args[0]), shape_of(moved), shape_of(flat)
    if not image or not permuted or not rows or not weight or len(weight) != 2 or axes[0] != 0:
        return None
    extents = permuted[1:]
    known = [extent for extent in extents if isinstance(extent, int)]
    if len(known) != len(extents) or not same(rows, (image[0], prod(known))):
        return None
    # Axis of the weights for each axis of the image; the columns are last.
    order = [axes.index(axis) - 1 for axis in range(1, len(axes))]
    matrix = relax.op.permute_dims(relax.op.reshape(call.args[1], (*known, weight[1])), [*order, len(known)])
    return rebuild_call(call, relax.op.reshape(moved.args[0], flat.ty.shape), relax.op.reshape(matrix, weight))

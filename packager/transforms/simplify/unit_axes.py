"""Makes reshapes of transposes that only move an axis of one element: heads of a single row, which cost a copy."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import axes_of, static_shape_of
from packager.graph.rewrite import map_bindings

HEADS = (0, 2, 1, 3)


def reshape_unit_axes(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the transposes between rows and heads of ``main`` where one of the two axes has one element."""

    def rewrite(binding: Any) -> list[Any]:
        call = binding.value
        if axes_of(call) != HEADS:
            return [binding]
        extents = static_shape_of(call.args[0])
        if extents is None or 1 not in extents[1:3]:
            return [binding]
        shape = [extents[axis] for axis in HEADS]
        return [relax.VarBinding(binding.var, relax.op.reshape(call.args[0], shape))]

    return relax.transform.Normalize()(map_bindings(module, rewrite))

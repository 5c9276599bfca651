"""Joins all parts at once of concatenations that grow, as in DenseNet: ``concat(concat(a, b), c)``.

A concatenation that only another one and a normalization read is then read by the normalization alone, and its parts
are joined in that kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings

# Parts of one concatenation: a kernel has a pointer for each, and chooses among them.
MOST_PARTS = 32


def flatten_concats(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite concatenations in ``main`` of concatenations along the same axis. Leaves dead code."""
    joined: IdentityMap[tuple[int, list[Any]]] = IdentityMap()  # a concatenation's axis and parts

    def flattened(binding: Any) -> list[Any]:
        call = binding.value
        if operator_of(call) != "concat" or not isinstance(call.args[0], relax.Tuple):
            return [binding]
        axis = int(call.attrs.axis or 0) % int(binding.var.ty.ndim)
        parts: list[Any] = []
        for field in call.args[0].fields:
            inner = joined.get(field)
            parts += inner[1] if inner is not None and inner[0] == axis else [field]
        if len(parts) > MOST_PARTS:
            parts = list(call.args[0].fields)
        joined[binding.var] = (axis, parts)
        return [relax.VarBinding(binding.var, relax.op.concat(parts, axis))]

    return relax.transform.Normalize()(map_bindings(module, flattened))

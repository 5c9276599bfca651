"""Slices rows before they are normalized: a classifier reads one token of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, shape_of, slice_of
from packager.graph.rewrite import map_bindings, tidy

NORMS = ("nn.layer_norm", "nn.rms_norm")


def slice_before_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the slices in ``main`` of what nothing else reads, along other axes than those of a normalization."""
    flow = Dataflow(module["main"])

    def rewrite(binding: Any) -> Iterator[Any]:
        call = binding.value
        norm = _norm(flow, call)
        if norm is not None:
            data, *scales = norm.args
            sliced = relax.BlockBuilder().normalize(
                relax.Call(call.op, [data, *call.args[1:]], call.attrs, call.ty_args)
            )
            part = relax.DataflowVar(f"{binding.var.name}_rows", sliced.ty)
            yield relax.VarBinding(part, sliced)
            call = relax.Call(norm.op, [part, *scales], norm.attrs, norm.ty_args)
        yield relax.VarBinding(binding.var, call)

    return tidy(map_bindings(module, rewrite))


def _norm(flow: Dataflow, call: Any) -> Any | None:
    """Return the normalization that a slice reads rows of, which nothing else does."""
    parts = slice_of(call)
    norm = flow.call(call.args[0], *NORMS) if parts is not None else None
    if parts is None or norm is None or not flow.is_read_once(call.args[0]):
        return None
    rank = len(shape_of(norm) or ())
    axes = {int(axis) % rank for axis in norm.attrs.axes}
    sliced = {axis for axis, part in enumerate(parts) if part != slice(None)}
    return norm if sliced and not sliced & axes else None

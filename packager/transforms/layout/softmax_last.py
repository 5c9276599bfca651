"""Takes softmax over the last axis where the model has it over another, as over the channels of an image.

Vectors run along the last axis, and a row of it is contiguous. Between convolutions with channels last the permutations
around it cancel with theirs; elsewhere they are copies, which take less than strided rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import extents_of, is_one, operator_of
from packager.graph.rewrite import map_bindings

SOFTMAXES = {"nn.softmax": relax.op.nn.softmax, "nn.log_softmax": relax.op.nn.log_softmax}


# The axis of channels, and the fewest axes of images.
CHANNELS, IMAGE = 1, 4


def to_last_axis(module: tvm.IRModule, *, of_images: bool = False) -> tvm.IRModule:
    """Rewrite softmax and its logarithm in ``main`` over other axes than the last one, or those ``of_images`` only."""

    def rewrite(binding: Any) -> Iterator[Any]:
        call, value = binding.value, binding.value
        extents = extents_of(call.args[0]) if operator_of(call) in SOFTMAXES else None
        axis = int(call.attrs.axis) % len(extents) if extents else 0
        is_image = len(extents or ()) >= IMAGE and not is_one((extents or ())[-1])
        chosen = not of_images or (axis == CHANNELS and is_image)
        if extents and axis < len(extents) - 1 and chosen:
            axes = [*(other for other in range(len(extents)) if other != axis), axis]
            moved = relax.BlockBuilder().normalize(relax.op.permute_dims(call.args[0], axes))
            turned = relax.DataflowVar(f"{binding.var.name}.rows", moved.ty)
            yield relax.VarBinding(turned, moved)
            made = relax.BlockBuilder().normalize(SOFTMAXES[operator_of(call)](turned, -1))
            rows = relax.DataflowVar(f"{binding.var.name}.softmax", made.ty)
            yield relax.VarBinding(rows, made)
            value = relax.op.permute_dims(rows, [axes.index(place) for place in range(len(extents))])
        yield relax.VarBinding(binding.var, value)

    return relax.transform.Normalize()(map_bindings(module, rewrite))

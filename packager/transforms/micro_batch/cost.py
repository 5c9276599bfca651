"""How large a micro-batch is worth while: its activations against the weights, which each one reads again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from packager.bundle.manifest import Dim
from packager.graph import symbolic
from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.ir.model import ImportedModel
from packager.ir.shapes import Extent
from packager.transforms.micro_batch.rules import is_written

# An element of activations is written and read again. Elements are counted and not bytes, since what a quantized model
# computes in float32 is in memory as 8 bits, and so are its weights.
PASSES = 2
# If the activations of so many rows do not outweigh the weights, it gains nothing: transformers, at one thread and two.
MOST_ROWS = 2
# A micro-batch has at least so many elements of activations: below that a cache holds the whole batch's as well, and
# calls would be short.
LEAST = 1 << 16
# Where the batch is a dim, its rows may read so many times as many weights: what they run is code for one size.
DIM_PASSES = 8
# It reads a few rows of a table.
TABLE = "take"


def count_batches(model: ImportedModel, batch: int) -> int:
    """Return the greatest number of micro-batches that are worth while, which divides the batch."""
    weights, activations = _weigh(model, {dim.name: dim for dim in model.signature.dims})
    if weights * batch > activations * PASSES * MOST_ROWS:
        return 1
    most = int(activations / max(weights / PASSES, LEAST))
    return next((count for count in range(min(most, batch), 1, -1) if batch % count == 0), 1)


def is_row_worth(model: ImportedModel, batch: str) -> bool:
    """Whether one row at a time is worth while of a batch that is a dim."""
    dims = {dim.name: replace(dim, min=1, max=1) if dim.name == batch else dim for dim in model.signature.dims}
    weights, activations = _weigh(model, dims)
    return activations >= max(weights / DIM_PASSES, LEAST)


def _weigh(model: ImportedModel, dims: Mapping[str, Dim]) -> tuple[int, int]:
    """Return how many weights there are that are read whole, and elements of activations, at the dims' maxima."""
    main = model.module["main"]
    inputs = main.params[: len(model.signature.inputs)]
    names: IdentityMap[Extent] = IdentityMap()
    for extent in (extent for parameter in inputs for extent in parameter.ty.shape.values):
        if isinstance(extent, tirx.Var):
            names[extent] = extent.name

    def elements(ty: Any) -> int:
        if isinstance(ty, relax.TupleType):
            return sum(map(elements, ty.fields))
        extents = extents_of(ty)
        return 0 if extents is None else math.prod(symbolic.maximum(extent, names, dims) for extent in extents)

    calls = [b.value for b in bindings_of(main) if isinstance(b.value, relax.Call)]
    read = IdentitySet(a for call in calls if operator_of(call) != TABLE for a in call.args)
    parameters = zip(main.params[len(inputs) :], model.weights.values(), strict=True)
    weights = sum(array.size for parameter, array in parameters if parameter in read)
    written = sum(elements(call.ty) for call in calls if is_written(call))
    return weights, written + sum(elements(parameter.ty) for parameter in inputs)

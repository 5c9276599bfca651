"""Chooses the micro-batch size: compares its activations with the weights, which every micro-batch reads again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from packager.bundle.manifest import Dim
from packager.graph import symbolic
from packager.graph.dataflow import bindings_of, computed_from_constants, extents_of, operator_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.ir.model import ImportedModel
from packager.ir.shapes import Extent
from packager.transforms.micro_batch.rules import is_materialized

# Activations are written and read. Counts elements, not bytes: a quantized model's activations and weights are both
# stored in 8 bits, though it computes in float32.
PASSES = 2
# No gain if more rows than this are needed to outweigh the weights, as in transformers (measured on one and two
# threads).
MOST_ROWS = 2
# Minimum activations of a micro-batch, in elements: below it the whole batch fits in the cache, and calls are short.
LEAST = 1 << 16
# If the batch is a dim, single rows may read this many times more weights, since their code is for a static size.
DIM_PASSES = 8
# Reads only a few rows of a table.
TABLE = "take"


def count_batches(model: ImportedModel, batch: int) -> int:
    """Return the largest profitable number of micro-batches; it divides the batch."""
    weights, activations = _weigh(model, {dim.name: dim for dim in model.signature.dims})
    if weights * batch > activations * PASSES * MOST_ROWS:
        return 1
    most = int(activations / max(weights / PASSES, LEAST))
    return next((count for count in range(min(most, batch), 1, -1) if batch % count == 0), 1)


def is_row_profitable(model: ImportedModel, batch: str) -> bool:
    """Whether it is profitable to run a symbolic batch row by row."""
    dims = {dim.name: replace(dim, min=1, max=1) if dim.name == batch else dim for dim in model.signature.dims}
    weights, activations = _weigh(model, dims)
    return activations >= max(weights / DIM_PASSES, LEAST)


def _weigh(model: ImportedModel, dims: Mapping[str, Dim]) -> tuple[int, int]:
    """Return the elements of weights that are fully read, and of activations, with the dims at their maxima."""
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
    constants = computed_from_constants(main, len(inputs))
    made = [binding for binding in bindings_of(main) if binding.var not in constants]  # others are weights in the end
    written = sum(elements(b.var.ty) for b in made if isinstance(b.value, relax.Call) and is_materialized(b.value))
    return weights, written + sum(elements(parameter.ty) for parameter in inputs)

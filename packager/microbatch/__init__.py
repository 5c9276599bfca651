"""Micro-batches: a model of a batch becomes one of a part of it, and a run of the bundle runs that for each part.

Activations of a small part stay in a core's cache where those of the whole batch do not, and threads take parts of
their own, which needs no waiting between the calls of a run. What is paid is that each part reads the weights again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, tirx

from packager.call_plan import MicroBatches
from packager.frontends.names import with_main
from packager.ir import ImportedModel
from packager.microbatch.rules import NotSeparableError, is_written
from packager.microbatch.split import split

if TYPE_CHECKING:
    from packager.ir import Array

# An element of activations is written and read again. Elements are counted and not bytes, since what a quantised model
# computes in float32 is in memory as 8 bits, and so are its weights.
PASSES = 2
# A micro-batch has at least so many elements of activations: below that a cache holds the whole batch's as well, and
# calls would be short.
LEAST = 1 << 16
# It reads a few rows of a table.
TABLE = "relax.take"


def in_micro_batches(model: ImportedModel, rows: int = 0) -> ImportedModel:
    """Return a model that computes ``rows`` of the batch, if these divide it and the model can be taken apart so; else
    the model as it is. With 0 they are the least number whose activations outweigh the weights and are not few.

    The batch is the first axis of the first input, and of all outputs; it is no dim.
    """
    batch = _batch(model)
    count = batch // rows if rows else _count(model, batch)
    if model.states or count < 2 or batch % count or rows not in (0, batch // count):
        return model
    inputs = [bool(spec.shape) and spec.shape[0] == batch for spec in model.inputs]
    repeated = {name: array[: batch // count] for name, array in model.weights.items() if _repeats(model, name, batch)}
    try:
        main = split(model.module["main"], [*inputs, *(name in repeated for name in model.weights)], count)
    except NotSeparableError:
        return model
    whole = tuple(spec.name for spec, parted in zip(model.inputs, inputs, strict=True) if not parted)
    return replace(
        model,
        module=with_main(model.module, main),
        weights={**model.weights, **repeated},
        batches=MicroBatches(count, whole),
    )


def _batch(model: ImportedModel) -> int:
    """Return the first extent of the first input that has axes, where it is a number; else 1."""
    first = next((spec.shape[0] for spec in model.inputs if spec.shape), 1)
    return first if isinstance(first, int) else 1


def _count(model: ImportedModel, batch: int) -> int:
    """Return the greatest number of micro-batches that are worth while, which divides the batch."""
    main = model.module["main"]
    calls = _calls(main)
    read = {a.__chandle__() for call in calls if getattr(call.op, "name", "") != TABLE for a in call.args}
    parameters = zip(main.params[len(model.inputs) :], model.weights.values(), strict=True)
    weights = sum(array.size for parameter, array in parameters if parameter.__chandle__() in read)
    given = sum(_elements(parameter.ty) for parameter in main.params[: len(model.inputs)])
    most = int((given + sum(map(_written, calls))) / max(weights / PASSES, LEAST))
    return next((count for count in range(min(most, batch), 1, -1) if batch % count == 0), 1)


def _repeats(model: ImportedModel, name: str, batch: int) -> bool:
    """Whether a weight was computed at import, as the same thing for each row of the batch.

    Where it is seen through its source's memory, a session can swap it; then it must be the same whatever that holds.
    """
    array = model.weights[name]
    if array.ndim == 0 or array.shape[0] != batch or name not in model.sources:
        return False
    own = model.own_constants()
    followed = any(np.may_share_memory(array, own[source]) for source in model.sources[name])
    return array.strides[0] == 0 or (not followed and _equal_along_first(array))


def _equal_along_first(array: Array) -> bool:
    first = array[:1].tobytes()  # bit by bit: NaN, and both zeros
    return all(array[i : i + 1].tobytes() == first for i in range(1, len(array)))


def _calls(main: relax.Function) -> list[Any]:
    return [b.value for block in main.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]


def _written(call: relax.Call) -> int:
    """Return the elements of a result that is memory of its own; of extents that are not known none."""
    types = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    return sum(map(_elements, types)) if is_written(call) else 0


def _elements(ty: Any) -> int:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    return math.prod(int(extent) if isinstance(extent, tirx.IntImm) else 0 for extent in ty.shape.values)

"""Micro-batching: rewrites a model to compute a part of the batch, which a run repeats for all parts.

Activations of a part stay in a core's cache, and threads run separate parts without barriers between calls. The cost is
that each part reads the weights again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packager.graph.rewrite import with_main
from packager.ir.model import ImportedModel
from packager.ir.shapes import Extent, MicroBatches
from packager.transforms.micro_batch.cost import count_batches, is_row_profitable
from packager.transforms.micro_batch.rules import NotSeparableError
from packager.transforms.micro_batch.split import split

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


def split_batch(model: ImportedModel, rows: int = 0) -> ImportedModel:
    """Return a model that computes ``rows`` of the batch, if they divide it and the model is separable; else the model
    unchanged. 0 picks the smallest micro-batch whose activations are larger than the weights and not too few.

    The batch is the first axis of the first input and of all outputs. A symbolic batch is computed row by row, or not
    split.
    """
    signature = model.signature
    batch = next((spec.shape[0] for spec in signature.inputs if spec.shape), 1)
    count = _count(model, batch, rows)
    if count == 1 or signature.states:
        return model
    inputs = [bool(spec.shape) and spec.shape[0] == batch for spec in signature.inputs]
    repeated = _repeated(model, batch, count)
    main = model.module["main"]
    parts = count if isinstance(count, int) else main.params[inputs.index(True)].ty.shape.values[0]
    try:
        main = split(main, [*inputs, *(name in repeated for name in model.weights)], parts)
    except NotSeparableError:
        return model
    whole = tuple(spec.name for spec, parted in zip(signature.inputs, inputs, strict=True) if not parted)
    return replace(
        model,
        signature=replace(signature, batches=MicroBatches(count, whole)),
        module=with_main(model.module, main),
        weights={**model.weights, **repeated},
    )


def _count(model: ImportedModel, batch: Extent, rows: int) -> Extent:
    """Return the number of micro-batches: an integer, or the batch's dim."""
    if isinstance(batch, str):
        return batch if rows == 1 or (rows == 0 and is_row_profitable(model, batch)) else 1
    if rows == 0:
        return count_batches(model, batch)
    return batch // rows if batch >= rows and batch % rows == 0 else 1


def _repeated(model: ImportedModel, batch: Extent, count: Extent) -> dict[str, Array]:
    """Return the weights that repeat a row for each row of the batch, restricted to one part."""
    if not (isinstance(batch, int) and isinstance(count, int)):
        return {}
    return {name: array[: batch // count] for name, array in model.weights.items() if _repeats(model, name, batch)}


def _repeats(model: ImportedModel, name: str, batch: int) -> bool:
    """Whether a weight was computed at import by repeating the same row for the batch.

    If it is a view of its source, a session can swap that; then rows must be equal for any content.
    """
    array = model.weights[name]
    if array.ndim == 0 or array.shape[0] != batch or name not in model.sources:
        return False
    own = model.own_constants()
    followed = any(np.may_share_memory(array, own[source]) for source in model.sources[name])
    return array.strides[0] == 0 or (not followed and _equal_along_first(array))


def _equal_along_first(array: Array) -> bool:
    first = array[:1].tobytes()  # bitwise, for NaN and signed zeros
    return all(array[i : i + 1].tobytes() == first for i in range(1, len(array)))

"""GatherND and ScatterND at constant places; ScatterElements with fewer indices than data on other axes than the
scattered one, for which TVM's is wrong.

ONNX operators GatherND (version 13), ScatterND (18), ScatterElements (18), Scatter (9).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.operands import Convert, Converter, constant, extents, text
from packager.frontends.scatter import needs_flat_indices, scatter_flat
from packager.graph.dataflow import shape_of

REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_elements(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Scatter into the flat data, by flat indices."""
    data, indices, updates = inputs
    axis = attributes.get("axis", 0) % len(extents(data))
    if not needs_flat_indices(extents(data), extents(indices), axis):
        return convert("ScatterElements", list(inputs), attributes)
    reduction = REDUCTIONS[text(attributes, "reduction", "none")]
    return scatter_flat(builder, data, indices, updates, axis, reduction)


def _gather_nd(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Gather at constant places that follow one another by a slice: torch indexes masks by all of their places.

    Gather at others by one index of one axis: torch indexes several axes by arrays that are broadcast, and exports the
    places of all elements of the result.
    """
    data, indices = inputs
    places, shape = constant(indices, attributes), shape_of(data)
    if places is not None and shape is not None and not attributes.get("batch_dims", 0):
        axes = places.shape[-1]
        counted = _counted(places, shape[:axes])
        if counted is not None:
            kept, flat = _flat(counted, shape[:axes])
            rows = builder.emit(relax.op.reshape(data, [*shape[:kept], math.prod(shape[kept:axes]), *shape[axes:]]))
            first = int(flat.flat[0])
            if (np.diff(flat.reshape(-1)) == 1).all():
                part = builder.emit(relax.op.strided_slice(rows, [kept], [first], [first + flat.size]))
                return relax.op.reshape(part, [*places.shape[:-1], *shape[axes:]])
            return relax.op.take(rows, relax.const(flat), kept)
    return convert("GatherND", list(inputs), attributes)


def _scatter_nd(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Scatter to a box of constant places by concatenations: torch assigns slices so."""
    data, indices, updates = inputs
    places, shape = constant(indices, attributes), shape_of(data)
    if places is not None and shape is not None and text(attributes, "reduction", "none") == "none":
        axes = places.shape[-1]
        counted = _counted(places, shape[:axes])
        starts = None if counted is None else _box(counted)
        if starts is not None:
            return _replaced(builder, data, updates, list(zip(starts, places.shape[:-1], shape[:axes], strict=True)))
    return convert("ScatterND", list(inputs), attributes)


def _box(places: Array) -> list[int] | None:
    """Return where a box starts in each axis, if places [extents..., axes] are all of its elements in order."""
    axes = places.shape[-1]
    if places.ndim != axes + 1:
        return None
    starts = [int(start) for start in places[(0,) * axes]]
    for axis, start in enumerate(starts):
        counts = start + np.arange(places.shape[axis]).reshape([-1 if other == axis else 1 for other in range(axes)])
        if not (places[..., axis] == counts).all():
            return None
    return starts


def _replaced(builder: Any, data: Any, box: Any, sides: Sequence[tuple[int, int, int]]) -> Any:
    """Return ``data`` with a box replaced: of each axis where it starts, its extent, and that of ``data``.

    Grows the box along one axis after the other, the last one first, by what of the data is beside it.
    """
    for axis, (start, extent, whole) in reversed(list(enumerate(sides))):
        parts = [box]
        for begin, end in ((0, start), (start + extent, whole)):
            if begin < end:
                begins = [*(side[0] for side in sides[:axis]), begin]
                ends = [*(side[0] + side[1] for side in sides[:axis]), end]
                part = builder.emit(relax.op.strided_slice(data, list(range(axis + 1)), begins, ends))
                parts.insert(len(parts) if begin else 0, part)
        box = builder.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else box
    return box


def _counted(places: Array, shape: Sequence[Any]) -> Array | None:
    """Return places [..., axes] in ``shape``, counted from 0; None if that cannot be known."""
    if places.size == 0 or not all(isinstance(extent, int) for extent in shape):
        return None
    counted = np.where(places < 0, places + np.array(shape), places)
    return None if (counted < 0).any() or (counted >= shape).any() else counted


def _flat(places: Array, shape: Sequence[int]) -> tuple[int, Array]:
    """Return how many of the first axes of ``shape`` the result of gathering has as they are, and the flat indices of
    the places in the others, which are the same for each element of these."""
    axes, result = len(shape), places.shape[:-1]
    kept = 0
    while kept < min(axes - 1, len(result)) and result[kept] == shape[kept]:
        counts = np.arange(shape[kept]).reshape([-1 if axis == kept else 1 for axis in range(len(result))])
        if not (places[..., kept] == counts).all():
            break
        kept += 1
    while not (places[..., kept:] == places[(slice(1),) * kept][..., kept:]).all():
        kept -= 1
    others = places[(0,) * kept][..., kept:]
    return kept, np.asarray(np.ravel_multi_index(tuple(np.moveaxis(others, -1, 0)), tuple(shape[kept:])), np.int64)


CONVERTERS: Mapping[str, Converter] = {
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
}

"""Scatters single elements along an axis where there are fewer indices than data on the other axes.

``relax.scatter_elements`` computes such scatters wrongly: it takes the indices to have the data's other extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.graph.dataflow import shape_of


def needs_flat_indices(shape: Sequence[Any], counts: Sequence[Any], axis: int) -> bool:
    """Tell whether the other extents of the indices, ``counts``, are known to differ from those of the data."""
    static = all(isinstance(extent, int) for extent in (*shape, *counts))
    return static and [*shape[:axis], *shape[axis + 1 :]] != [*counts[:axis], *counts[axis + 1 :]]


def scatter_flat(builder: Any, data: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    """Scatter into the flat data, by flat indices. All extents are known."""
    shape = list(shape_of(data) or ())

    def flat(at: Any) -> Any:
        def element(*i: Any) -> Any:
            index = at(*i).astype("int64")
            index = tirx.Select(index < 0, index + shape[axis], index)
            place = tirx.const(0, "int64")
            for number, extent in enumerate(shape):
                place = place * extent + (index if number == axis else i[number].astype("int64"))
            return place

        return te.compute(at.shape, element, name="flat_indices")

    emit = builder.emit
    places = emit(relax.op.reshape(emit(builder.call_te(flat, indices, primfunc_name_hint="flat_indices")), [-1]))
    operands = [emit(relax.op.reshape(data, [-1])), places, emit(relax.op.reshape(updates, [-1]))]
    return relax.op.reshape(emit(relax.op.scatter_elements(*operands, axis=0, reduction=reduction)), shape)

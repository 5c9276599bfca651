"""Tables of a resizing, which are part of the code."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.dataflow import shape_of
from packager.graph.resize import attributes_of_call

# Terms of an element, and elements of a table.
MOST_TERMS = 16
LONGEST_TABLE = 4096


@dataclass(frozen=True)
class ResizeTables:
    """The resized axes, and three arrays for each, as ``packager.resize`` has them."""

    axes: tuple[int, ...]
    arrays: tuple[Array, ...]


def read_tables(call: Any) -> ResizeTables | None:
    """Return the tables of a call of ``packager.resize``; None if it moves elements of a row, which is of float32 and
    of known length, or if there are many terms, long tables, or values for what is beyond the edges."""
    shape, (data, tables) = shape_of(call), call.args
    attributes = attributes_of_call(call.attrs)
    if not shape or not isinstance(shape[-1], int) or not isinstance(data, relax.Var) or call.ty.dtype != "float32":
        return None
    if any(attributes.cropped) or len(shape) - 1 in attributes.axes or not isinstance(tables, relax.Tuple):
        return None
    if not all(hasattr(table, "value") for table in tables.fields):
        return None
    arrays = tuple(table.value.numpy() for table in tables.fields)
    terms = prod(int(indices.shape[1]) for indices in arrays[::3])
    fits = terms <= MOST_TERMS and all(indices.size <= LONGEST_TABLE for indices in arrays[::3])
    return ResizeTables(attributes.axes, arrays) if fits else None

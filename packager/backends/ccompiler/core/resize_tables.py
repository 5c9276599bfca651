"""Tables of a resizing, which are part of the code."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.dataflow import shape_of, static_shape_of
from packager.graph.resize import attributes_of_call

# Terms of an element, and elements of a table.
MOST_TERMS = 16
LONGEST_TABLE = 4096


@dataclass(frozen=True)
class ResizeTables:
    """The resized axes, the terms along each, and its indices and weights as far as they are part of the graph.

    Others (None) are operands, in order.
    """

    axes: tuple[int, ...]
    taps: tuple[int, ...]
    arrays: tuple[tuple[Array | None, Array | None], ...]


def read_tables(call: Any) -> ResizeTables | None:
    """Return the tables of a call of ``packager.resize`` of float32 rows of known length; None if there are many terms,
    long tables, or values for what is beyond the edges, or if elements of a row move and no constant says which."""
    shape, (data, tables) = shape_of(call), call.args
    attributes = attributes_of_call(call.attrs)
    if not shape or not isinstance(shape[-1], int) or not isinstance(data, relax.Var) or call.ty.dtype != "float32":
        return None
    if any(attributes.cropped) or not isinstance(tables, relax.Tuple):
        return None
    sizes = [static_shape_of(table) or (0, 0) for table in tables.fields[::3]]
    taps = tuple(count for _, count in sizes)
    if not 1 <= prod(taps) <= MOST_TERMS or any(prod(size) > LONGEST_TABLE for size in sizes):
        return None
    found = [_array(table) for table in tables.fields]
    if len(shape) - 1 in attributes.axes and not _is_line(shape_of(data), attributes.axes, found):
        return None
    return ResizeTables(attributes.axes, taps, tuple(zip(found[::3], found[1::3], strict=True)))


def _is_line(shape: Any, axes: tuple[int, ...], tables: list[Array | None]) -> bool:
    """Whether a line of the data is one for the stack, and a constant table says what of it is read."""
    is_short = bool(shape) and isinstance(shape[-1], int) and shape[-1] <= LONGEST_TABLE
    return is_short and axes[-1] == len(shape) - 1 and tables[-3] is not None


def operands_of_resize(call: Any) -> list[Any]:
    """Return the data, then the tables that are operands: of each axis indices, then weights."""
    data, tables = call.args
    return [data, *(t for i, t in enumerate(tables.fields) if i % 3 < 2 and isinstance(t, relax.Var))]


def _array(table: Any) -> Array | None:
    array: Array | None = table.value.numpy() if hasattr(table, "value") else None
    return array

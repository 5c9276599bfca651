"""Converters of torch's scatter-like updates, such as writing rows of a KV-cache, or assigning slices.

Results are new tensors. If the old tensor is a state of the session, ``plan.in_place`` updates its memory in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.sym import Analyzer

from packager.frontends.torch.ops.indexing import index_tensors, indexed_first, is_mask, wrap_negative
from packager.frontends.torch.ops.program import argument, axis_of, operator_of
from packager.frontends.torch.ops.views import slice_bounds, strided_slice
from packager.graph.dataflow import shape_of

_R = relax.op
# Assignments of slices that become one concatenation.
MOST_ASSIGNED = 32


def _index_put(importer: Any, node: Any) -> Any:
    """Write slices at indices, ``data[:, rows, columns] = values``, or add to what is there.

    Where one mask that is not known says where, ``data[mask] = value``, the values must be the same for all that it
    takes.
    """
    adds, given = bool(argument(node, 3, "accumulate", False)), [index for index in node.args[1] if index is not None]
    if len(given) == 1 and is_mask(given[0]) and _is_same_for_all(importer, node, given[0]):
        return _masked(importer, node, given[0], adds=adds)
    data, shape = importer.tensor(node.args[0]), importer.shape(node)
    axes, indices = index_tensors(importer, node.args[1], shape)
    order = indexed_first(axes, len(shape))
    if order is None:
        return _write(importer, data, shape, axes[0], indices, node.args[2], adds=adds)
    moved = importer.emit(_R.permute_dims(data, order))
    written = _write(importer, moved, [shape[axis] for axis in order], 0, indices, node.args[2], adds=adds)
    return _R.permute_dims(importer.emit(written), [order.index(axis) for axis in range(len(order))])


def _behind(importer: Any, node: Any, mask: Any) -> list[Any]:
    """Return the extents of the axes behind those of a mask."""
    return list(importer.shape(node)[list(node.args[1]).index(mask) + mask.meta["val"].ndim :])


def _is_same_for_all(importer: Any, node: Any, mask: Any) -> bool:
    values, behind = importer.shape(node.args[2]), _behind(importer, node, mask)
    return all(extent == 1 for extent in values[: max(len(values) - len(behind), 0)])


def _masked(importer: Any, node: Any, mask: Any, *, adds: bool) -> Any:
    """Choose between values, which follow the axes of one mask, and the data."""
    behind, given = _behind(importer, node, mask), importer.shape(node.args[2])
    condition = importer.emit(_R.reshape(importer.tensor(mask, "bool"), [*importer.shape(mask), *[1] * len(behind)]))
    old, new = importer.tensor(node.args[0]), importer.tensor(node.args[2], importer.dtype(node))
    if len(given) > len(behind):
        new = importer.emit(_R.reshape(new, given[len(given) - len(behind) :]))
    return _R.where(condition, importer.emit(_R.add(old, new)) if adds else new, old)


def _index_copy(importer: Any, node: Any) -> Any:
    data, _, index, values = node.args
    shape, axis = importer.shape(node), axis_of(node, 1)
    indices = [wrap_negative(importer, index, shape[axis])]
    return _write(importer, importer.tensor(data), shape, axis, indices, values)


def _write(
    importer: Any, data: Any, shape: list[Any], axis: int, indices: list[Any], values: Any, *, adds: bool = False
) -> Any:
    """Write by ``scatter_nd`` with one index tuple per slice; the axes before ``axis`` are enumerated."""
    before, counts = shape[:axis], _broadcast(indices)
    if axis and not all(isinstance(extent, int) for extent in (*before, *counts)):
        raise ValueError("the axes before the indexed one must be static")
    rows, columns = [*before, *counts], []
    if axis:
        counted = np.stack(
            np.broadcast_arrays(*np.indices(before)[(..., *[None] * len(counts))], np.empty(rows))[:axis], -1
        )
        columns.append(relax.const(counted.astype(np.int64), "int64"))
    for index in indices:
        places = importer.emit(_R.broadcast_to(index, counts))
        column = importer.emit(_R.reshape(places, [*[1] * axis, *counts, 1]))
        columns.append(importer.emit(_R.broadcast_to(column, [*rows, 1])))
    places = importer.emit(_R.concat(columns, len(rows))) if len(columns) > 1 else columns[0]
    written = [*rows, *shape[axis + len(indices) :]]
    update = importer.emit(_R.broadcast_to(importer.tensor(values, str(data.ty.dtype)), written))
    return _R.scatter_nd(data, places, update, "add" if adds else "update")


def _broadcast(indices: list[Any]) -> list[Any]:
    """Return the shape to which indices are broadcast. Raises ValueError if that is not known."""
    shapes = [shape_of(index) or () for index in indices]
    if len(shapes) == 1:
        return list(shapes[0])
    if not all(isinstance(extent, int) for shape in shapes for extent in shape):
        raise ValueError("several indices must have static shapes")
    return list(np.broadcast_shapes(*shapes))


def _slice_scatter(importer: Any, node: Any) -> Any:
    """Assign slices of one axis, one after the other, by one concatenation of all that remains of each.

    As it is in ONNX files where parts are concatenated at once. What has steps is left to TVM's operator.
    """
    axis, start, step = slice_bounds(importer, node, 2)
    if step != 1:
        end = start + importer.shape(node.args[1])[axis] * step
        bounds = [relax.prim_value(bound) for bound in (start, end, step)]
        values = importer.tensor(node.args[1], importer.dtype(node))
        return _R.slice_scatter(importer.tensor(node.args[0]), values, *bounds, axis=axis)
    chain, base = [node], node.args[0]
    if _is_static(importer, node, axis):
        while len(chain) < MOST_ASSIGNED and _assigns(base, importer) and _is_static(importer, base, axis):
            chain.append(base)
            base = base.args[0]
    parts = [_Part(importer.tensor(base), 0, importer.shape(base)[axis])]
    for each in reversed(chain):
        _, start, _ = slice_bounds(importer, each, 2)
        count = importer.shape(each.args[1])[axis]
        own = _Part(importer.tensor(each.args[1], importer.dtype(node)), 0, count)
        before, behind = _parted(parts, start)[0], _parted(parts, start + count)[1]
        parts = [part for part in (*before, own, *behind) if not part.is_empty]
    tensors = [part.emit(importer, axis) for part in parts]
    return _R.concat(tensors, axis) if len(tensors) > 1 else tensors[0]


def _assigns(node: Any, importer: Any) -> bool:
    return node not in importer.known and operator_of(node) == "slice_scatter.default"


def _is_static(importer: Any, node: Any, axis: int) -> bool:
    """Whether an assignment is of neighboring elements of an axis, at known places."""
    own, start, step = slice_bounds(importer, node, 2)
    extents = (start, importer.shape(node)[axis], importer.shape(node.args[1])[axis])
    return own == axis and step == 1 and all(isinstance(extent, int) for extent in extents)


@dataclass(frozen=True)
class _Part:
    """The elements of a tensor from ``begin`` to ``end`` along an axis."""

    tensor: Any
    begin: Any
    end: Any

    @property
    def length(self) -> Any:
        return self.end - self.begin

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no elements."""
        return bool(Analyzer().can_prove_equal(self.begin, self.end))

    def emit(self, importer: Any, axis: int) -> Any:
        if Analyzer().can_prove_equal(self.length, self.tensor.ty.shape.values[axis]):
            return self.tensor
        return importer.emit(strided_slice(self.tensor, axis, self.begin, self.end))


def _parted(parts: list[_Part], place: Any) -> tuple[list[_Part], list[_Part]]:
    """Return what parts have before a place, and from there on. It is symbolic of a single part only."""
    before, behind = [], []
    for part in parts:
        middle = part.begin + (place if len(parts) == 1 else max(min(place, part.length), 0))
        before.append(_Part(part.tensor, part.begin, middle))
        behind.append(_Part(part.tensor, middle, part.end))
        place = place - part.length
    return before, behind


UPDATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "index_put.default": _index_put,
    "index_copy.default": _index_copy,
    "slice_scatter.default": _slice_scatter,
}

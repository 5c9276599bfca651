"""Converters of torch's scatter-like updates, such as writing rows of a KV-cache, or assigning slices.

Results are new tensors. If the old tensor is a state of the session, ``plan.in_place`` updates its memory in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tvm import relax
from tvm.sym import Analyzer

from packager.frontends.torch.ops.program import argument, operator_of
from packager.frontends.torch.ops.views import slice_bounds, strided_slice

_R = relax.op
# Assignments of slices that become one concatenation.
MOST_ASSIGNED = 32


def _index_put(importer: Any, node: Any) -> Any:
    """Write slices at indices along adjacent axes, ``data[:, rows, columns] = values``, or add to what is there.

    Where one mask says where, ``data[mask] = value``, the values must be the same for all that it takes.
    """
    indices, adds = list(node.args[1]), bool(argument(node, 3, "accumulate", False))
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(indices[axis].meta["val"].dtype in (torch.bool, torch.uint8) for axis in axes):
        return _masked(importer, node, axes, adds=adds)
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise ValueError("index_put of axes that are not adjacent is not supported")
    return _write(importer, node, axes[0], [indices[axis] for axis in axes], node.args[2], adds=adds)


def _masked(importer: Any, node: Any, axes: list[int], *, adds: bool) -> Any:
    """Choose between values, which follow the axes of one mask, and the data."""
    data, values = node.args[0], node.args[2]
    mask, shape, axis = node.args[1][axes[0]], importer.shape(node), axes[0]
    behind = shape[axis + mask.meta["val"].ndim :]
    given = importer.shape(values)
    if len(axes) > 1 or any(extent != 1 for extent in given[: max(len(given) - len(behind), 0)]):
        raise ValueError("index_put by a mask is supported for values that are the same for all that it takes")
    condition = importer.emit(_R.reshape(importer.tensor(mask, "bool"), [*importer.shape(mask), *[1] * len(behind)]))
    old, new = importer.tensor(data), importer.tensor(values, importer.dtype(node))
    if len(given) > len(behind):
        new = importer.emit(_R.reshape(new, given[len(given) - len(behind) :]))
    return _R.where(condition, importer.emit(_R.add(old, new)) if adds else new, old)


def _index_copy(importer: Any, node: Any) -> Any:
    data, axis, index, values = node.args
    return _write(importer, node, axis % max(data.meta["val"].ndim, 1), [index], values)


def _write(importer: Any, node: Any, axis: int, indices: list[Any], values: Any, *, adds: bool = False) -> Any:
    """Write by ``scatter_nd`` with one index tuple per slice; the axes before ``axis`` are enumerated."""
    shape = importer.shape(node)
    before, counts = shape[:axis], _broadcast(importer, indices)
    if axis and not all(isinstance(extent, int) for extent in (*before, *counts)):
        raise ValueError("the axes before the indexed one must be static")
    rows, columns = [*before, *counts], []
    if axis:
        counted = np.stack(
            np.broadcast_arrays(*np.indices(before)[(..., *[None] * len(counts))], np.empty(rows))[:axis], -1
        )
        columns.append(relax.const(counted.astype(np.int64), "int64"))
    for size, index in zip(shape[axis:], indices, strict=False):
        given = importer.tensor(index, "int64")
        negative = importer.emit(_R.less(given, relax.const(0, "int64")))
        wrapped = importer.emit(_R.add(given, importer.tensor(size, "int64")))
        places = importer.emit(_R.broadcast_to(importer.emit(_R.where(negative, wrapped, given)), counts))
        column = importer.emit(_R.reshape(places, [*[1] * axis, *counts, 1]))
        columns.append(importer.emit(_R.broadcast_to(column, [*rows, 1])))
    places = importer.emit(_R.concat(columns, len(rows))) if len(columns) > 1 else columns[0]
    written = [*rows, *shape[axis + len(indices) :]]
    update = importer.emit(_R.broadcast_to(importer.tensor(values, importer.dtype(node)), written))
    return _R.scatter_nd(importer.tensor(node.args[0]), places, update, "add" if adds else "update")


def _broadcast(importer: Any, indices: list[Any]) -> list[Any]:
    """Return the shape to which indices are broadcast. Raises ValueError if that is not known."""
    shapes = [importer.shape(index) for index in indices]
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

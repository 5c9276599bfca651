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

from packager.frontends.torch.ops.program import argument, operator_of
from packager.frontends.torch.ops.views import slice_bounds, strided_slice

_R = relax.op
# Assignments of slices that become one concatenation.
MOST_ASSIGNED = 32


def _index_put(importer: Any, node: Any) -> Any:
    """Write slices at indices along one axis: ``data[:, :, index] = values``."""
    indices = list(node.args[1])
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) != 1 or indices[axes[0]].meta["val"].ndim != 1 or indices[axes[0]].meta["val"].dtype.is_floating_point:
        raise ValueError("index_put is supported for a single vector of integers only")
    if argument(node, 3, "accumulate", False):
        raise ValueError("index_put with accumulate is not supported")
    return _write(importer, node, axes[0], indices[axes[0]], node.args[2])


def _index_copy(importer: Any, node: Any) -> Any:
    data, axis, index, values = node.args
    return _write(importer, node, axis % max(data.meta["val"].ndim, 1), index, values)


def _write(importer: Any, node: Any, axis: int, index: Any, values: Any) -> Any:
    """Write by ``scatter_nd`` with one index tuple per slice; the axes before ``axis`` are enumerated."""
    shape = importer.shape(node)
    before, (count,) = shape[:axis], importer.shape(index)
    if not all(isinstance(extent, int) for extent in (*before, count)):
        raise ValueError("the axes before the indexed one must be static")
    size = shape[axis]
    given = importer.tensor(index, "int64")
    negative = importer.emit(_R.less(given, relax.const(0, "int64")))
    wrapped = importer.emit(_R.add(given, importer.tensor(size, "int64")))
    places = importer.emit(_R.where(negative, wrapped, given))
    rows = [*before, count]
    last = importer.emit(_R.broadcast_to(importer.emit(_R.reshape(places, [*[1] * axis, count, 1])), [*rows, 1]))
    if axis:
        counted = np.stack(np.broadcast_arrays(*np.indices(before)[..., None], np.empty(rows))[:axis], -1)
        last = importer.emit(_R.concat([relax.const(counted.astype(np.int64), "int64"), last], axis + 1))
    written = [*rows, *shape[axis + 1 :]]
    update = importer.emit(_R.broadcast_to(importer.tensor(values, importer.dtype(node)), written))
    return _R.scatter_nd(importer.tensor(node.args[0]), last, update)


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

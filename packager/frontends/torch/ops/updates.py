"""Converters of torch's scatter-like updates, such as writing rows of a KV-cache.

Results are new tensors. If the old tensor is a state of the session, ``plan.in_place`` updates its memory in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from packager.frontends.torch.ops.program import argument

_R = relax.op


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


UPDATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "index_put.default": _index_put,
    "index_copy.default": _index_copy,
}

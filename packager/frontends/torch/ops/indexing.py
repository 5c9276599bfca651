"""Converters of torch's lookups: embeddings, and elements and slices at indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from packager.frontends.torch.ops.program import axis_of

_R = relax.op


def wrap_negative(importer: Any, index: Any, extent: Any) -> Any:
    """Return the indices of the node ``index`` as int64, negative ones wrapped."""
    tensor = importer.tensor(index, "int64")
    known = importer.known.get(index)
    if known is not None and not (known < 0).any():
        return tensor
    behind = importer.emit(_R.add(tensor, importer.tensor(extent, "int64")))
    negative = importer.emit(_R.less(tensor, relax.const(0, "int64")))
    return importer.emit(_R.where(negative, behind, tensor))


def index_tensors(importer: Any, indices: Any, shape: list[Any]) -> tuple[list[int], list[Any]]:
    """Return the axes of ``shape`` that have an index, and their indices as tensors.

    A mask that is known stands for the indices of what it takes. Raises ValueError for another one.
    """
    axes: list[int] = []
    tensors: list[Any] = []
    axis = 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        if not is_mask(index):
            columns = [wrap_negative(importer, index, shape[axis])]
        elif index in importer.known and index.meta["val"].ndim:
            columns = [relax.const(column.numpy(), "int64") for column in importer.known[index].nonzero(as_tuple=True)]
        else:
            raise ValueError("the size of a tensor indexed by a mask depends on data")
        axes += range(axis, axis + len(columns))
        tensors += columns
        axis += len(columns)
    return axes, tensors


def is_mask(index: Any) -> bool:
    """Tell whether an index says of each element whether it is taken."""
    return index.meta["val"].dtype in (torch.bool, torch.uint8)


def indexed_first(axes: list[int], rank: int) -> list[int] | None:
    """Return the order of axes in which torch indexes those that are not adjacent: first; None if all are adjacent."""
    if axes == list(range(axes[0], axes[-1] + 1)):
        return None
    return [*axes, *(axis for axis in range(rank) if axis not in axes)]


def _embedding(importer: Any, node: Any) -> Any:
    return _R.take(importer.tensor(node.args[0]), importer.tensor(node.args[1]), axis=0)


def _index_select(importer: Any, node: Any) -> Any:
    data = importer.tensor(node.args[0])
    if not node.args[0].meta["val"].ndim:  # the only element
        return _R.broadcast_to(data, importer.shape(node))
    index = importer.tensor(node.args[2])
    index = index if node.args[2].meta["val"].ndim else importer.emit(_R.reshape(index, [1]))
    return _R.take(data, index, axis=axis_of(node, 1))


def _gather(importer: Any, node: Any) -> Any:
    data, index = importer.tensor(node.args[0]), importer.tensor(node.args[2], "int64")
    if not node.args[0].meta["val"].ndim:  # the only element
        return _R.broadcast_to(data, importer.shape(node))
    if not node.meta["val"].ndim:
        return _R.reshape(importer.emit(_R.take(data, index, axis=0)), [])
    return _R.gather_elements(data, index, axis=axis_of(node, 1))


def _index(importer: Any, node: Any) -> Any:
    """Convert ``data[a, b, ...]``: flatten indexed axes, which are moved together, and take by one linear index."""
    data, source = importer.tensor(node.args[0]), importer.shape(node.args[0])
    axes, indices = index_tensors(importer, node.args[1], source)
    order = indexed_first(axes, len(source))
    if order is not None:
        data, source = importer.emit(_R.permute_dims(data, order)), [source[axis] for axis in order]
    first = axes[0] if order is None else 0
    end = first + len(axes)
    place = indices[0]
    for index, extent in zip(indices[1:], source[first + 1 :], strict=False):
        rows = importer.emit(_R.multiply(place, importer.tensor(extent, "int64")))
        place = importer.emit(_R.add(rows, index))
    if len(axes) > 1:
        size = source[first]
        for extent in source[first + 1 : end]:
            size = size * extent
        data = importer.emit(_R.reshape(data, [*source[:first], size, *source[end:]]))
    return _R.take(data, place, axis=first)


INDEXING: Mapping[str, Callable[[Any, Any], Any]] = {
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "index.Tensor": _index,
}

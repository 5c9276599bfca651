"""Converters of torch's scatters of single elements: ``scatter``, ``scatter_reduce``, ``index_reduce``, ``put``, and
``masked_scatter``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import wide_type
from packager.frontends.scatter import needs_flat_indices, scatter_flat
from packager.frontends.torch.ops.indexing import wrap_negative
from packager.frontends.torch.ops.program import argument, axis_of, operator_of
from packager.frontends.torch.ops.views import strided_slice
from packager.graph.dataflow import same, shape_of

_R = relax.op
# Names of Relax's reductions by torch's.
_REDUCTIONS = {
    **dict.fromkeys(("sum", "mean", "add"), "add"),
    **dict.fromkeys(("prod", "multiply"), "mul"),
    "amax": "max",
    "amin": "min",
}
# Of truth values.
_LOGICAL = {"update": "update", "add": "max", "mul": "min", "max": "max", "min": "min"}


def _scatter(importer: Any, node: Any) -> Any:
    """Convert ``scatter`` of a tensor or a number, with or without a reduction, and ``scatter_add``."""
    _, _, index, source = node.args[:4]
    kind = "add" if operator_of(node) == "scatter_add.default" else argument(node, 4, "reduce")
    updates = _updates(importer, source, index, importer.dtype(node))
    data, places = importer.tensor(node.args[0]), importer.tensor(index, "int64")
    return _scattered(importer, data, places, updates, axis_of(node, 1), _REDUCTIONS.get(kind, "update"))


def _scatter_reduce(importer: Any, node: Any) -> Any:
    index, kind, dtype = node.args[2], node.args[4], importer.dtype(node)
    updates, places = _updates(importer, node.args[3], index, dtype), importer.tensor(index, "int64")
    return _reduced(importer, node, places, updates, kind, with_self=bool(argument(node, 5, "include_self", True)))


def _index_reduce(importer: Any, node: Any) -> Any:
    """Scatter by an index that is the same for all elements of a slice."""
    _, _, index, source, kind = node.args[:5]
    axis, counts = axis_of(node, 1), importer.shape(source)
    column = [-1 if number == axis else 1 for number in range(len(counts))]
    places = importer.emit(_R.reshape(importer.tensor(index, "int64"), column))
    places = importer.emit(_R.broadcast_to(places, counts))
    include = bool(argument(node, 5, "include_self", True))
    return _reduced(importer, node, places, importer.tensor(source), kind, with_self=include)


def _put(importer: Any, node: Any) -> Any:
    """Write elements of the flat data, or add to them."""
    shape = importer.shape(node)
    size = math.prod(shape)
    places = importer.emit(_R.reshape(wrap_negative(importer, node.args[1], size), [-1]))
    updates = importer.emit(_R.reshape(importer.tensor(node.args[2]), [-1]))
    data = importer.emit(_R.reshape(importer.tensor(node.args[0]), [size]))
    how = "add" if argument(node, 3, "accumulate", False) else "update"
    return _R.reshape(importer.emit(_scattered(importer, data, places, updates, 0, how)), shape)


def _updates(importer: Any, source: Any, index: Any, dtype: str) -> Any:
    """Return what is scattered, with the shape of the index: torch ignores what a tensor has beyond it."""
    counts, updates = importer.shape(index), importer.tensor(source, dtype)
    if not hasattr(source, "meta"):
        return importer.emit(_R.broadcast_to(updates, counts)) if counts else updates
    for axis, (have, count) in enumerate(zip(importer.shape(source), counts, strict=False)):
        if isinstance(have, int) and isinstance(count, int) and have > count:
            updates = importer.emit(strided_slice(updates, axis, 0, count))
    return updates


def _reduced(importer: Any, node: Any, places: Any, updates: Any, kind: str, *, with_self: bool) -> Any:
    """Reduce with what the data have at the indices, or with the identity of the reduction in place of it."""
    dtype, axis, reduction = importer.dtype(node), axis_of(node, 1), _REDUCTIONS[kind]
    data = importer.tensor(node.args[0])
    wide = wide_type(dtype) if kind == "mean" else dtype
    data, updates = importer.cast(data, wide), importer.cast(updates, wide)
    if not with_self:
        neutral = _filled(importer, updates, _identity(reduction, wide))
        data = importer.emit(_scattered(importer, data, places, neutral, axis, "update"))
    result = importer.emit(_scattered(importer, data, places, updates, axis, reduction))
    if kind != "mean":
        return result
    counts = _filled(importer, data, int(with_self))
    counts = importer.emit(_scattered(importer, counts, places, _filled(importer, updates, 1), axis, "add"))
    counts = importer.emit(_R.maximum(counts, relax.const(1, wide)))
    mean = (_R.divide if wide.startswith("float") else _R.floor_divide)(result, counts)
    return importer.cast(importer.emit(mean), dtype)


def _filled(importer: Any, like: Any, number: Any) -> Any:
    return importer.emit(_R.broadcast_to(relax.const(number, str(like.ty.dtype)), shape_of(like)))


def _identity(reduction: str, dtype: str) -> Any:
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if dtype == "bool":
        return reduction == "min"
    sign = -1 if reduction == "max" else 1
    if dtype.startswith(("float", "bfloat")):
        return sign * np.inf
    limits = np.iinfo(dtype)
    return limits.min if reduction == "max" else limits.max


def _scattered(importer: Any, data: Any, places: Any, updates: Any, axis: int, reduction: str) -> Any:
    """Scatter along an axis. ``places`` and ``updates`` are of one shape, whose other extents are at most the data's.

    torch takes a tensor of rank 0 to have one axis.
    """
    dtype, shape = str(data.ty.dtype), shape_of(data) or ()
    if dtype == "bool":
        data, updates, reduction = importer.cast(data, "int8"), importer.cast(updates, "int8"), _LOGICAL[reduction]
    flat = [importer.emit(_R.reshape(tensor, [-1])) for tensor in (data, places, updates)] if len(shape) < 2 else None
    data, places, updates = flat or (data, places, updates)
    extents, counts = shape_of(data) or (), shape_of(places) or ()
    if needs_flat_indices(extents, counts, axis):
        result = scatter_flat(importer.block_builder, data, places, updates, axis, reduction)
    elif same((*extents[:axis], *extents[axis + 1 :]), (*counts[:axis], *counts[axis + 1 :])):
        result = _R.scatter_elements(data, places, updates, axis=axis, reduction=reduction)
    else:
        raise ValueError("scattering to a part of symbolic axes is not supported")
    result = importer.cast(importer.emit(result), dtype)
    return result if shape else _R.reshape(result, [])


def _masked_scatter(importer: Any, node: Any) -> Any:
    """Replace what a mask says by the elements of a tensor, in order: the n-th by the n-th.

    Language models replace the embeddings of tokens by features so, with a mask for each row that is repeated for its
    elements: whole rows are counted and taken.
    """
    data, mask, source = node.args
    shape, size = importer.shape(node), math.prod(importer.shape(source))
    result = importer.tensor(data)
    result = importer.emit(_R.broadcast_to(result, shape)) if len(importer.shape(data)) < len(shape) else result
    narrow, rank = _narrow_mask(importer, mask, len(shape))
    width = math.prod(shape[rank:])
    if not (isinstance(size, int) and isinstance(width, int) and size % width == 0):
        narrow, rank, width = mask, len(shape), 1
    if isinstance(size, int) and not size:
        return result
    taken = importer.tensor(narrow, "bool")
    front = [1] * (len(shape) - len(importer.shape(narrow))) + importer.shape(narrow)
    chosen = importer.emit(_R.broadcast_to(importer.emit(_R.reshape(taken, front[:rank])), shape[:rank]))
    numbers = importer.cast(importer.emit(_R.reshape(chosen, [math.prod(shape[:rank])])), "int64")
    numbers = importer.emit(_R.cumsum(numbers, axis=0))
    before = importer.emit(_R.subtract(numbers, relax.const(1, "int64")))
    numbers = importer.emit(_R.maximum(before, relax.const(0, "int64")))
    rows = importer.emit(_R.reshape(importer.tensor(source), [size // width, width]))
    picked = importer.emit(_R.reshape(importer.emit(_R.take(rows, numbers, axis=0, mode="clip")), shape))
    condition = importer.emit(_R.reshape(chosen, [*shape[:rank], *[1] * (len(shape) - rank)]))
    return _R.where(condition, picked, result)


def _narrow_mask(importer: Any, mask: Any, rank: int) -> tuple[Any, int]:
    """Return the mask before it was repeated, and how many of the first of ``rank`` axes it tells apart."""
    while operator_of(mask) in ("expand.default", "clone.default", "alias.default"):
        mask = mask.args[0]
    extents = importer.shape(mask)
    while extents and isinstance(extents[-1], int) and extents[-1] == 1:
        extents, rank = extents[:-1], rank - 1
    return mask, rank


SCATTERS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{f"scatter.{kind}": _scatter for kind in ("src", "value", "reduce", "value_reduce")},
    "scatter_add.default": _scatter,
    "scatter_reduce.two": _scatter_reduce,
    "index_reduce.default": _index_reduce,
    "put.default": _put,
    "masked_scatter.default": _masked_scatter,
}

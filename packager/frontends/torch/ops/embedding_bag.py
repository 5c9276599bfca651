"""The converter of torch's embedding bags: sums, means and maxima of the rows of bags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import wide_type
from packager.frontends.torch.ops.program import argument
from packager.frontends.torch.ops.views import strided_slice

_R = relax.op
_SUM, _MEAN, _MAX = range(3)


def _embedding_bag(importer: Any, node: Any) -> Any:
    """Reduce the rows of bags: by an axis where all have as many, else by scattering each row to its bag."""
    if any(user.args[1] and user.users for user in node.users):
        raise ValueError("results beside the first, which are for training, are not supported")
    weight, indices = node.args[:2]
    mode, padding = argument(node, 4, "mode", _SUM), argument(node, 8, "padding_idx", -1)
    weights = argument(node, 6, "per_sample_weights")
    dtype, emit = importer.element_type(weight.meta["val"].dtype), importer.emit
    wide = wide_type(dtype)
    given = importer.tensor(indices)
    rows = importer.cast(emit(_R.take(importer.tensor(weight), given, axis=0)), wide)
    if weights is not None:
        rows = emit(_R.multiply(rows, emit(_R.expand_dims(importer.tensor(weights, wide), [1]))))
    neutral = relax.const(-np.inf if mode == _MAX else 0, wide)
    taken = emit(_R.broadcast_to(relax.const(True, "bool"), importer.shape(indices)))
    if padding >= 0:
        taken = emit(_R.not_equal(given, relax.const(padding, str(given.ty.dtype))))
        rows = emit(_R.where(emit(_R.expand_dims(taken, [1])), rows, neutral))
    bags, width = importer.symbols.shape(node.meta["val"][0])
    reduce = _equal_bags(importer, node, bags) or _scattered_bags(importer, node, bags)
    result = reduce(rows, [width], "max" if mode == _MAX else "add", neutral)
    counts = reduce(importer.cast(taken, wide), [], "add", relax.const(0, wide)) if mode != _SUM else None
    if mode == _MEAN:
        counts = emit(_R.maximum(counts, relax.const(1, wide)))
        result = emit(_R.divide(result, emit(_R.expand_dims(counts, [1]))))
    elif mode == _MAX:
        empty = emit(_R.equal(counts, relax.const(0, wide)))
        result = emit(_R.where(emit(_R.expand_dims(empty, [1])), relax.const(0, wide), result))
    return relax.Tuple([importer.cast(result, dtype)])


def _equal_bags(importer: Any, node: Any, bags: Any) -> Callable[..., Any] | None:
    """Return a reduction of an axis, or None unless bags are known to have as many rows each."""
    offsets, (count,) = importer.known.get(node.args[2]), importer.shape(node.args[1])
    if offsets is None or not isinstance(count, int) or not bags or count % bags:
        return None
    each = count // bags
    if not np.array_equal(offsets.numpy()[:bags], np.arange(bags) * each):
        return None

    def reduce(rows: Any, behind: list[Any], how: str, _neutral: Any) -> Any:
        apart = importer.emit(_R.reshape(rows, [bags, each, *behind]))
        return importer.emit((_R.max if how == "max" else _R.sum)(apart, axis=[1]))

    return reduce if each else None


def _scattered_bags(importer: Any, node: Any, bags: Any) -> Callable[..., Any]:
    """Return a reduction by scattering to bags: that of a row is the last one that starts at it or before."""
    emit, (count,) = importer.emit, importer.shape(node.args[1])
    offsets = importer.tensor(node.args[2], "int64")
    if argument(node, 7, "include_last_offset", False):
        offsets = emit(strided_slice(offsets, 0, 0, bags))
    places = emit(_R.expand_dims(emit(_R.arange(0, count, 1, "int64")), [1]))
    begun = importer.cast(emit(_R.less_equal(emit(_R.expand_dims(offsets, [0])), places)), "int64")
    own = emit(_R.subtract(emit(_R.sum(begun, axis=[1], keepdims=True)), relax.const(1, "int64")))

    def reduce(rows: Any, behind: list[Any], how: str, neutral: Any) -> Any:
        into = emit(_R.broadcast_to(neutral, [bags, *behind]))
        return emit(_R.scatter_nd(into, own, rows, how))

    return reduce


EMBEDDING_BAGS: Mapping[str, Callable[[Any, Any], Any]] = {
    f"{name}.default": _embedding_bag for name in ("_embedding_bag", "_embedding_bag_forward_only")
}

"""Converters of torch's neural network operators: matmul, attention, normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tvm import relax

from packager.bundle.dtypes import wide_type
from packager.frontends.batch_norms import normalize_by_statistics
from packager.frontends.torch.ops.program import argument

_R = relax.op


def _matmul(importer: Any, node: Any) -> Any:
    first, second = (importer.tensor(operand) for operand in node.args)
    return _R.matmul(first, second)


def _linear(importer: Any, node: Any) -> Any:
    weight = importer.tensor(node.args[1])
    weight = importer.emit(_R.permute_dims(weight)) if node.args[1].meta["val"].ndim == 2 else weight
    result = _R.matmul(importer.tensor(node.args[0]), weight)
    bias = argument(node, 2, "bias")
    return result if bias is None else _R.add(importer.emit(result), importer.tensor(bias))


def _addmm(importer: Any, node: Any) -> Any:
    """Convert addmm: ``beta * bias + alpha * first @ second``."""
    bias, first, second = (importer.tensor(operand) for operand in node.args)
    dtype = importer.dtype(node)
    product = importer.emit(_R.matmul(first, second))
    for name in ("alpha", "beta"):
        factor = node.kwargs.get(name, 1)
        if factor != 1:
            scaled = importer.emit(_R.multiply(product if name == "alpha" else bias, importer.tensor(factor, dtype)))
            product, bias = (scaled, bias) if name == "alpha" else (product, scaled)
    return _R.add(product, bias)


def _attention(importer: Any, node: Any) -> Any:
    """Convert to matmul, softmax, matmul. Fully masked rows give 0, as in torch."""
    if argument(node, 4, "dropout_p", 0.0):
        raise ValueError("attention with dropout is for training")
    dtype, depth = importer.dtype(node), node.args[0].meta["val"].shape[-1]
    q, k, v = (importer.tensor(operand) for operand in node.args[:3])
    rank = node.meta["val"].ndim
    if argument(node, 7, "enable_gqa", False):
        k, v = (_repeat_heads(importer, operand, node.args[0]) for operand in node.args[1:3])
    scale = argument(node, 6, "scale")
    scale = 1 / int(depth) ** 0.5 if scale is None else scale
    keys_last = [*range(rank - 2), rank - 1, rank - 2]
    scores = importer.emit(_R.matmul(q, importer.emit(_R.permute_dims(k, keys_last))))
    scores = importer.emit(_R.multiply(scores, importer.tensor(scale, dtype)))
    mask = argument(node, 3, "attn_mask")
    may_be_empty = False
    if argument(node, 5, "is_causal", False):
        sees_key = _causal_mask(importer, node)
        if isinstance(sees_key, np.ndarray):
            added = np.where(sees_key, 0, -np.inf).astype(dtype)
            scores = importer.emit(_R.add(scores, relax.const(added, dtype)))
        else:
            scores = importer.emit(_R.where(sees_key, scores, relax.const(-np.inf, dtype)))
    elif mask is not None:
        known = importer.known.get(mask)
        may_be_empty = known is None or not _has_no_masked_row(known)
        if mask.meta["val"].dtype is torch.bool:
            scores = importer.emit(_R.where(importer.tensor(mask), scores, relax.const(-np.inf, dtype)))
        else:
            scores = importer.emit(_R.add(scores, importer.tensor(mask, dtype)))
    weights = importer.emit(_R.nn.softmax(scores, axis=-1))
    if may_be_empty:
        weights = importer.emit(_R.where(importer.emit(_R.isnan(weights)), relax.const(0, dtype), weights))
    return _R.matmul(weights, v)


def _has_no_masked_row(mask: torch.Tensor) -> bool:
    kept = mask if mask.dtype is torch.bool else mask > -torch.inf
    return bool(kept.any(-1).all())


def _causal_mask(importer: Any, node: Any) -> Any:
    """Return the causal mask: an array for static shapes, else a tensor."""
    queries, keys = (importer.shape(operand)[-2] for operand in node.args[:2])
    if isinstance(queries, int) and isinstance(keys, int):
        return np.tri(queries, keys, dtype=bool)
    rows = importer.emit(_R.expand_dims(importer.emit(_R.arange(0, queries, 1, "int64")), [1]))
    columns = importer.emit(_R.expand_dims(importer.emit(_R.arange(0, keys, 1, "int64")), [0]))
    return importer.emit(_R.greater_equal(rows, columns))


def _repeat_heads(importer: Any, operand: Any, queries: Any) -> Any:
    """Repeat the heads of keys or values for grouped-query attention."""
    data, shape = importer.tensor(operand), importer.shape(operand)
    heads = importer.shape(queries)[-3]
    before, (have, rows, depth) = shape[:-3], shape[-3:]
    if heads == have:
        return data
    data = importer.emit(_R.reshape(data, [*before, have, 1, rows, depth]))
    data = importer.emit(_R.broadcast_to(data, [*before, have, heads // have, rows, depth]))
    return importer.emit(_R.reshape(data, [*before, heads, rows, depth]))


def _softmax(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        return function(importer.tensor(node.args[0], importer.dtype(node)), axis=node.args[1])

    return convert


def _scale_and_shift(importer: Any, node: Any, first: int, shape: Any, dtype: str | None = None) -> tuple[Any, Any]:
    """Return weight and bias of a normalization, the arguments from ``first`` on; ones and zeros if omitted.

    They have their own types without ``dtype``: float32 perhaps, where the data are of half precision.
    """
    weight, bias = node.args[first : first + 2]
    default = dtype or importer.element_type(node.args[0].meta["val"].dtype)
    gamma = relax.const(np.ones(shape), default) if weight is None else importer.tensor(weight, dtype)
    return gamma, relax.const(np.zeros(shape), default) if bias is None else importer.tensor(bias, dtype)


def _layer_norm(importer: Any, node: Any) -> Any:
    data, rank = importer.tensor(node.args[0]), len(node.args[1])
    shape = importer.shape(node.args[0])
    gamma, beta = _scale_and_shift(importer, node, 2, shape[len(shape) - rank :], str(data.ty.dtype))
    return _R.nn.layer_norm(data, gamma, beta, axes=list(range(-rank, 0)), epsilon=node.args[4])


def _norm_of_channels(importer: Any, node: Any, norm: Any, epsilon: float, **options: int) -> Any:
    """Normalize images by their own statistics, of halves in float32: Relax has no group norms of bfloat16."""
    dtype, shape = importer.dtype(node.args[0]), importer.shape(node.args[0])
    data = importer.tensor(node.args[0], wide_type(dtype))
    gamma, beta = _scale_and_shift(importer, node, 1, shape[1], wide_type(dtype))
    axes = list(range(2, len(shape)))
    return importer.cast(
        importer.emit(norm(data, gamma, beta, channel_axis=1, axes=axes, epsilon=epsilon, **options)), dtype
    )


def _group_norm(importer: Any, node: Any) -> Any:
    groups, epsilon = node.args[6:8]
    return _norm_of_channels(importer, node, _R.nn.group_norm, epsilon, num_groups=groups)


def _instance_norm(importer: Any, node: Any) -> Any:
    """Convert one by the statistics of its input, or by those that it has kept, which is a batch norm."""
    if not node.args[5]:
        return _kept_norm(importer, node, node.args[7])
    return _norm_of_channels(importer, node, _R.nn.instance_norm, node.args[7])


def _batch_norm(importer: Any, node: Any) -> Any:
    return _kept_norm(importer, node, node.args[6])


def _kept_norm(importer: Any, node: Any, epsilon: float) -> Any:
    """Normalize by the statistics that a model has kept."""
    scale_and_shift = _scale_and_shift(importer, node, 1, (importer.shape(node.args[0])[1],))
    kept = map(importer.tensor, node.args[3:5])
    data = importer.tensor(node.args[0])
    return normalize_by_statistics(importer.emit, data, (*scale_and_shift, *kept), epsilon)


NETWORK: Mapping[str, Callable[[Any, Any], Any]] = {
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "linear.default": _linear,
    "addmm.default": _addmm,
    "baddbmm.default": _addmm,
    "scaled_dot_product_attention.default": _attention,
    "_softmax.default": _softmax(_R.nn.softmax),
    "softmax.int": _softmax(_R.nn.softmax),
    "_log_softmax.default": _softmax(_R.nn.log_softmax),
    "log_softmax.int": _softmax(_R.nn.log_softmax),
    "native_layer_norm.default": _layer_norm,
    "native_group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm,
}

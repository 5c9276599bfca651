"""Converters of torch's neural network operators: matmul, attention, normalization, pooling, resizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tvm import relax

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


def _scale_and_shift(importer: Any, node: Any, first: int, shape: Any) -> tuple[Any, Any]:
    """Return weight and bias of a normalization, the arguments from ``first`` on; ones and zeros if omitted."""
    dtype = importer.element_type(node.args[0].meta["val"].dtype)
    weight, bias = node.args[first : first + 2]
    gamma = relax.const(np.ones(shape), dtype) if weight is None else importer.tensor(weight)
    return gamma, relax.const(np.zeros(shape), dtype) if bias is None else importer.tensor(bias)


def _layer_norm(importer: Any, node: Any) -> Any:
    data, rank = importer.tensor(node.args[0]), len(node.args[1])
    shape = importer.shape(node.args[0])
    gamma, beta = _scale_and_shift(importer, node, 2, shape[len(shape) - rank :])
    return _R.nn.layer_norm(data, gamma, beta, axes=list(range(-rank, 0)), epsilon=node.args[4])


def _group_norm(importer: Any, node: Any) -> Any:
    data, shape = importer.tensor(node.args[0]), importer.shape(node.args[0])
    gamma, beta = _scale_and_shift(importer, node, 1, shape[1])
    groups, epsilon = node.args[6:8]
    axes = list(range(2, len(shape)))
    return _R.nn.group_norm(data, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)


def _max_pool(importer: Any, node: Any) -> Any:
    kernel = _pair(node.args[1])
    stride = _pair(argument(node, 2, "stride") or kernel)
    padding = _pair(argument(node, 3, "padding", 0))
    dilation = _pair(argument(node, 4, "dilation", 1))
    ceil = bool(argument(node, 5, "ceil_mode", False))
    shape = importer.shape(node.args[0])
    wanted = importer.symbols.shape(node.meta["val"][0])
    after = list(padding)
    for axis in (0, 1):
        size, result = shape[-2 + axis], wanted[-2 + axis]
        if ceil and not (isinstance(size, int) and isinstance(result, int)):
            raise ValueError("ceil_mode is supported for static extents only")
        if ceil:  # torch drops a window that starts in the padding; torch's output shape has the number of windows
            reach = (result - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
            after[axis] = max(reach - size - padding[axis], padding[axis])
    pads = [*padding, *after]
    return _batched(importer, node, lambda x: _R.nn.max_pool2d(x, kernel, stride, pads, dilation, layout="NCHW"))


def _average_pool(importer: Any, node: Any) -> Any:
    kernel = _pair(node.args[1])
    stride = _pair(argument(node, 2, "stride") or kernel)
    padding = _pair(argument(node, 3, "padding", 0))
    source, wanted = importer.shape(node.args[0])[-2:], importer.shape(node)[-2:]
    if argument(node, 6, "divisor_override") is not None:
        raise ValueError("divisor_override is not supported")
    for axis, (extent, result) in enumerate(zip(source, wanted, strict=True)):
        if result == 1 and isinstance(extent, int):  # a single window is clipped to the data
            kernel[axis] = min(kernel[axis], extent + 2 * padding[axis])
        elif argument(node, 4, "ceil_mode", False):
            reach = (result - 1) * stride[axis] + kernel[axis] - 2 * padding[axis]
            if not isinstance(extent, int) or reach > extent:
                raise ValueError("average pooling with windows that exceed the input is not supported")
    if kernel == source and wanted == [1, 1] and not any(padding):
        return _batched(importer, node, lambda x: _R.nn.adaptive_avg_pool2d(x, 1, layout="NCHW"))
    include = bool(argument(node, 5, "count_include_pad", True))
    pads = [*padding, *padding]
    return _batched(
        importer,
        node,
        lambda x: _R.nn.avg_pool2d(x, kernel, stride, pads, layout="NCHW", count_include_pad=include),
    )


def _batched(importer: Any, node: Any, pool: Callable[[Any], Any]) -> Any:
    """Apply ``pool`` to a tensor with or without a batch axis."""
    data = importer.tensor(node.args[0])
    if node.args[0].meta["val"].ndim == 4:
        return pool(data)
    return _R.squeeze(importer.emit(pool(importer.emit(_R.expand_dims(data, [0])))), [0])


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 2 if len(values) == 1 else values


def _resize(method: str) -> Callable[[Any, Any], Any]:
    """Return a converter of ``upsample_*.vec``."""

    def convert(importer: Any, node: Any) -> Any:
        nearest = method == "nearest_neighbor"
        corners = not nearest and bool(argument(node, 2, "align_corners", False))
        factors = argument(node, 2 if nearest else 3, "scale_factors")
        source, wanted = importer.shape(node.args[0])[2:], importer.shape(node)[2:]
        for extent, size, factor in zip(source, wanted, factors or (), strict=False):
            # torch would compute coordinates by this factor, which differs from the ratio of the sizes.
            known = isinstance(extent, int) and isinstance(size, int)
            if not corners and (not known or extent * factor != size):
                raise ValueError(f"resizing {extent} by {factor} to {size} is not supported")
        smooth = "align_corners" if corners else "half_pixel"
        return _R.image.resize2d(
            importer.tensor(node.args[0]),
            relax.ShapeExpr(wanted),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode="asymmetric" if nearest else smooth,
            rounding_method="floor" if nearest else "round",
        )

    return convert


def _smooth_resize(importer: Any, node: Any) -> Any:
    """Convert upsampling with ``antialias``, which has no effect unless the image shrinks."""
    source, wanted = importer.shape(node.args[0])[2:], importer.shape(node)[2:]
    if not all(isinstance(a, int) and isinstance(b, int) and a <= b for a, b in zip(source, wanted, strict=True)):
        raise ValueError("downsampling with antialiasing is not supported")
    return _resize("linear")(importer, node)


def _grid_sampler(importer: Any, node: Any) -> Any:
    """Convert ``grid_sampler_2d`` or ``_3d``: TVM's grid has the coordinates first, torch's last."""
    data, grid, mode, padding, corners = node.args
    rank = len(importer.shape(data))
    return _R.image.grid_sample(
        importer.tensor(data),
        _R.permute_dims(importer.tensor(grid), [0, rank - 1, *range(1, rank - 1)]),
        method=("bilinear", "nearest", "bicubic")[mode],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=("zeros", "border", "reflection")[padding],
        align_corners=corners,
    )


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
    "max_pool2d_with_indices.default": _max_pool,
    "avg_pool2d.default": _average_pool,
    "upsample_bilinear2d.vec": _resize("linear"),
    "upsample_nearest2d.vec": _resize("nearest_neighbor"),
    "upsample_bicubic2d.vec": _resize("cubic"),
    "_upsample_bilinear2d_aa.default": _smooth_resize,
    "grid_sampler_2d.default": _grid_sampler,
    "grid_sampler_3d.default": _grid_sampler,
}

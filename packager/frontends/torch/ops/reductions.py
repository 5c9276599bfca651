"""Converters of torch's reductions: sums, products, min/max, norms, cumulative sums.

Squares of half precision are summed in float32, as torch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from packager.bundle.dtypes import wide_type
from packager.frontends.torch.ops.program import argument

_R = relax.op


def _axes(node: Any, dims: Any) -> list[int] | None:
    rank = node.args[0].meta["val"].ndim
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return None
    return [dim % max(rank, 1) for dim in ([dims] if isinstance(dims, int) else dims)]


def _reduction(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        data = importer.tensor(node.args[0], importer.dtype(node))
        if not node.args[0].meta["val"].ndim:
            return data
        axes = _axes(node, argument(node, 1, "dim"))
        return function(data, axis=axes, keepdims=bool(argument(node, 2, "keepdim", False)))

    return convert


def _any_or_all(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        data = importer.cast(importer.tensor(node.args[0], "bool"), "int32")
        axes = _axes(node, argument(node, 1, "dim"))
        keep = bool(argument(node, 2, "keepdim", False))
        found = importer.emit(function(data, axis=axes, keepdims=keep)) if node.args[0].meta["val"].ndim else data
        return importer.cast(found, "bool")

    return convert


def _largest(function: Callable[..., Any], arg: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a converter of ``max.dim``: values and indices."""

    def convert(importer: Any, node: Any) -> Any:
        data = importer.tensor(node.args[0])
        (axis,) = _axes(node, node.args[1]) or [0]
        keep = bool(argument(node, 2, "keepdim", False))
        values = importer.emit(function(data, axis=axis, keepdims=keep))
        return relax.Tuple([values, importer.emit(arg(data, axis=axis, keepdims=keep))])

    return convert


def _sum_type(importer: Any, node: Any) -> str:
    return wide_type(importer.dtype(node))


def _variance(importer: Any, node: Any) -> Any:
    return importer.cast(_wide_variance(importer, node), importer.dtype(node))


def _wide_variance(importer: Any, node: Any) -> Any:
    dtype = _sum_type(importer, node)
    data = importer.tensor(node.args[0], dtype)
    axes = _axes(node, argument(node, 1, "dim")) or list(range(node.args[0].meta["val"].ndim))
    keep = bool(node.kwargs.get("keepdim", False))
    correction = node.kwargs.get("correction")
    shape = importer.shape(node.args[0])
    count: Any = 1
    for axis in axes:
        count = count * shape[axis]
    mean = importer.emit(_R.mean(data, axis=axes, keepdims=True))
    difference = importer.emit(_R.subtract(data, mean))
    squares = importer.emit(_R.sum(importer.emit(_R.multiply(difference, difference)), axis=axes, keepdims=keep))
    correction = 1 if correction is None else correction
    freedom = count - (int(correction) if correction == int(correction) else correction)
    return importer.emit(_R.divide(squares, importer.tensor(freedom, dtype)))


def _deviation(importer: Any, node: Any) -> Any:
    return importer.cast(importer.emit(_R.sqrt(_wide_variance(importer, node))), importer.dtype(node))


def _vector_norm(importer: Any, node: Any) -> Any:
    return importer.cast(importer.emit(_wide_norm(importer, node)), importer.dtype(node))


def _wide_norm(importer: Any, node: Any) -> Any:
    data = importer.tensor(node.args[0], _sum_type(importer, node))
    order = argument(node, 1, "ord", 2)
    axes, keep = _axes(node, argument(node, 2, "dim")), bool(argument(node, 3, "keepdim", False))
    if order == 2:
        return _R.sqrt(importer.emit(_R.sum(importer.emit(_R.multiply(data, data)), axis=axes, keepdims=keep)))
    size = importer.emit(_R.abs(data))
    if order == 1:
        return _R.sum(size, axis=axes, keepdims=keep)
    if order in (float("inf"), float("-inf")):
        return (_R.max if order > 0 else _R.min)(size, axis=axes, keepdims=keep)
    dtype = str(data.ty.dtype)
    if order == 0:
        present = importer.emit(_R.not_equal(data, relax.const(0, dtype)))
        return _R.sum(importer.emit(_R.astype(present, dtype)), axis=axes, keepdims=keep)
    powers = importer.emit(_R.power(size, relax.const(order, dtype)))
    total = importer.emit(_R.sum(powers, axis=axes, keepdims=keep))
    return _R.power(total, relax.const(1 / order, dtype))


def _cumulative(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        data, rank = importer.tensor(node.args[0], importer.dtype(node)), node.args[0].meta["val"].ndim
        return function(data, node.args[1] % rank) if rank else data

    return convert


REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum.default": _reduction(_R.sum),
    "sum.dim_IntList": _reduction(_R.sum),
    "prod.default": _reduction(_R.prod),
    "prod.dim_int": _reduction(_R.prod),
    "mean.default": _reduction(_R.mean),
    "mean.dim": _reduction(_R.mean),
    "amax.default": _reduction(_R.max),
    "amin.default": _reduction(_R.min),
    "max.default": _reduction(_R.max),
    "min.default": _reduction(_R.min),
    "max.dim": _largest(_R.max, _R.argmax),
    "min.dim": _largest(_R.min, _R.argmin),
    "any.default": _any_or_all(_R.max),
    "any.dim": _any_or_all(_R.max),
    "any.dims": _any_or_all(_R.max),
    "all.default": _any_or_all(_R.min),
    "all.dim": _any_or_all(_R.min),
    "var.correction": _variance,
    "std.correction": _deviation,
    "linalg_vector_norm.default": _vector_norm,
    "cumsum.default": _cumulative(_R.cumsum),
    "cumprod.default": _cumulative(_R.cumprod),
}

"""Converters of torch's pooling, of images and volumes: maxima with their indices, and averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.pooling import AdaptiveWindow, Window, Windows, max_and_indices, reduce_windows, windowed_mean
from packager.frontends.torch.ops.program import argument

_R = relax.op
_LAYOUTS = {2: "NCHW", 3: "NCDHW"}


def _max_pool(rank: int) -> Callable[[Any, Any], Any]:
    """Return a converter of ``max_pool*d_with_indices``."""

    def convert(importer: Any, node: Any) -> Any:
        kernel, stride, padding = _geometry(node, rank)
        dilation = _each(argument(node, 4, "dilation", 1), rank)
        source, wanted = importer.shape(node.args[0])[-rank:], _result_shape(importer, node)[-rank:]
        after = list(padding)
        ceil = bool(argument(node, 5, "ceil_mode", False))
        static = _is_static(source)
        if ceil and not static:
            raise ValueError("ceil_mode is supported for static extents only")
        plain = importer.dtype(node.args[0]).startswith(("float", "bfloat", "int8", "uint8"))
        if _reads_indices(node) or (static and not plain):
            axes = zip(source, kernel, stride, dilation, padding, padding, wanted, strict=True)
            return _maxima(importer, node, [Window(*axis) for axis in axes])
        for axis in range(rank if ceil else 0):
            # torch drops a window that starts in the padding; torch's output shape has the number of windows
            reach = (wanted[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
            after[axis] = max(reach - source[axis] - padding[axis], padding[axis])
        pool = getattr(_R.nn, f"max_pool{rank}d")
        how = (kernel, stride, [*padding, *after], dilation)
        return _batched(importer, node, rank, lambda x: pool(x, *how, layout=_LAYOUTS[rank]))

    return convert


def _adaptive_max_pool(rank: int) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        return _maxima(importer, node, _adaptive_windows(importer, node, _result_shape(importer, node), rank))

    return convert


def _maxima(importer: Any, node: Any, windows: Windows) -> Any:
    """Return maxima, and their indices if the program reads them."""
    data, builder = _with_batch(importer, node, len(windows)), importer.block_builder
    if _reads_indices(node):
        both = importer.emit(max_and_indices(builder, data, windows, in_plane=True))
        parts = [importer.emit(relax.TupleGetItem(both, part)) for part in range(2)]
    else:
        low = tirx.min_value(importer.dtype(node.args[0]))
        parts = [importer.emit(builder.call_te(lambda x: reduce_windows(x, windows, te.max, low, "max_pool"), data))]
    shape = _result_shape(importer, node)
    return relax.Tuple([importer.emit(_R.reshape(part, shape)) for part in parts])


def _average_pool(rank: int) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        kernel, stride, padding = _geometry(node, rank)
        source, wanted = importer.shape(node.args[0])[-rank:], importer.shape(node)[-rank:]
        include, divisor = bool(argument(node, 5, "count_include_pad", True)), argument(node, 6, "divisor_override")
        exceeds = divisor is not None
        for axis, (extent, result) in enumerate(zip(source, wanted, strict=True)):
            if result == 1 and isinstance(extent, int) and divisor is None:  # a single window is clipped to the data
                kernel[axis] = min(kernel[axis], extent + 2 * padding[axis])
            elif argument(node, 4, "ceil_mode", False):
                reach = (result - 1) * stride[axis] + kernel[axis] - 2 * padding[axis]
                exceeds = exceeds or not isinstance(extent, int) or reach > extent
        if exceeds:
            if not _is_static(source):
                raise ValueError("windows that exceed the input, and divisor_override, need static extents")
            axes = zip(source, kernel, stride, [1] * rank, padding, padding, wanted, strict=True)
            return _mean(importer, node, [Window(*axis) for axis in axes], padding=include, divisor=divisor)
        if kernel == source and wanted == [1] * rank and not any(padding):
            return _global_average(importer, node, rank)
        pool = getattr(_R.nn, f"avg_pool{rank}d")
        how = {"layout": _LAYOUTS[rank], "count_include_pad": include}
        return _batched(importer, node, rank, lambda x: pool(x, kernel, stride, [*padding, *padding], **how))

    return convert


def _adaptive_average_pool(rank: int) -> Callable[[Any, Any], Any]:
    """Return a converter of ``_adaptive_avg_pool*d``: plain pooling where all windows are of the same size."""

    def convert(importer: Any, node: Any) -> Any:
        source, wanted = importer.shape(node.args[0])[-rank:], importer.shape(node)[-rank:]
        if wanted == [1] * rank:
            return _global_average(importer, node, rank)
        windows = _adaptive_windows(importer, node, wanted, rank)
        if any(window.extent % window.size for window in windows):
            return _mean(importer, node, windows)
        kernel = [extent // size for extent, size in zip(source, wanted, strict=True)]
        pool = getattr(_R.nn, f"avg_pool{rank}d")
        return _batched(importer, node, rank, lambda x: pool(x, kernel, kernel, layout=_LAYOUTS[rank]))

    return convert


def _global_average(importer: Any, node: Any, rank: int) -> Any:
    if rank == 2:  # quantization and layouts know the operator
        return _batched(importer, node, rank, lambda x: _R.nn.adaptive_avg_pool2d(x, 1, layout="NCHW"))
    return _R.mean(importer.tensor(node.args[0]), list(range(-rank, 0)), keepdims=True)


def _mean(importer: Any, node: Any, windows: Windows, *, padding: bool = False, divisor: int | None = None) -> Any:
    data = _with_batch(importer, node, len(windows))
    mean = windowed_mean(importer.block_builder, data, windows, padding=padding, divisor=divisor)
    return _R.reshape(importer.emit(mean), importer.shape(node))


def _geometry(node: Any, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return kernel, stride and padding of each axis."""
    kernel = _each(node.args[1], rank)
    return kernel, _each(argument(node, 2, "stride") or kernel, rank), _each(argument(node, 3, "padding", 0), rank)


def _adaptive_windows(importer: Any, node: Any, shape: list[Any], rank: int) -> list[AdaptiveWindow]:
    source = importer.shape(node.args[0])[-rank:]
    if not _is_static(source):
        raise ValueError(f"adaptive pooling of symbolic extents to {shape[-rank:]} is not supported")
    return [AdaptiveWindow(*axis) for axis in zip(source, shape[-rank:], strict=True)]


def _result_shape(importer: Any, node: Any) -> list[Any]:
    """Return the shape of the first of the results of a node."""
    return list(importer.symbols.shape(node.meta["val"][0]))


def _reads_indices(node: Any) -> bool:
    return any(user.args[1] == 1 and user.users for user in node.users)


def _is_static(extents: list[Any]) -> bool:
    return all(isinstance(extent, int) for extent in extents)


def _with_batch(importer: Any, node: Any, rank: int) -> Any:
    """Return the data of a node with a batch axis, which torch may leave out."""
    data = importer.tensor(node.args[0])
    return data if node.args[0].meta["val"].ndim == rank + 2 else importer.emit(_R.expand_dims(data, [0]))


def _batched(importer: Any, node: Any, rank: int, pool: Callable[[Any], Any]) -> Any:
    """Apply ``pool`` to a tensor with or without a batch axis."""
    pooled = pool(_with_batch(importer, node, rank))
    return pooled if node.args[0].meta["val"].ndim == rank + 2 else _R.squeeze(importer.emit(pooled), [0])


def _each(value: Any, rank: int) -> list[int]:
    """Return a value for each axis: torch may give one for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


POOLING: Mapping[str, Callable[[Any, Any], Any]] = {
    name.format(rank): convert(rank)
    for name, convert in {
        "max_pool{}d_with_indices.default": _max_pool,
        "adaptive_max_pool{}d.default": _adaptive_max_pool,
        "avg_pool{}d.default": _average_pool,
        "_adaptive_avg_pool{}d.default": _adaptive_average_pool,
    }.items()
    for rank in _LAYOUTS
}

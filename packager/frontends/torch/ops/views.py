"""Converters of torch's data movement: views, slices, concatenation, and padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, tirx
from tvm.ir.prim import expr_deep_equal

from packager.frontends.torch.ops.program import argument

_R = relax.op


def _same(importer: Any, node: Any) -> Any:
    return importer.tensor(node.args[0])


def _reshape(importer: Any, node: Any) -> Any:
    """Reshape to torch's output shape, so that ``-1`` and 0 need no handling."""
    data, shape = importer.tensor(node.args[0]), importer.shape(node)
    return data if _equal(importer.shape(node.args[0]), shape) else _R.reshape(data, shape)


def _unsqueeze(importer: Any, node: Any) -> Any:
    return _R.expand_dims(importer.tensor(node.args[0]), [node.args[1] % node.meta["val"].ndim])


def _squeeze(importer: Any, node: Any) -> Any:
    meta = node.args[0].meta["val"]
    dims = node.args[1] if len(node.args) > 1 else list(range(meta.ndim))
    dims = [dim % max(meta.ndim, 1) for dim in ([dims] if isinstance(dims, int) else dims)]
    axes = [dim for dim in dims if meta.ndim and isinstance(meta.shape[dim], int) and meta.shape[dim] == 1]
    data = importer.tensor(node.args[0])
    return _R.squeeze(data, axes) if axes else data


def _permute(importer: Any, node: Any) -> Any:
    rank = node.meta["val"].ndim
    axes = [axis % rank for axis in node.args[1]] if rank else []
    data = importer.tensor(node.args[0])
    return data if axes == sorted(axes) else _R.permute_dims(data, axes)


def _transpose(importer: Any, node: Any) -> Any:
    rank = node.meta["val"].ndim
    data = importer.tensor(node.args[0])
    first, second = (axis % max(rank, 1) for axis in node.args[1:3])
    axes = list(range(rank))
    if first != second:
        axes[first], axes[second] = second, first
        data = _R.permute_dims(data, axes)
    return data


def _expand(importer: Any, node: Any) -> Any:
    data, shape = importer.tensor(node.args[0]), importer.shape(node)
    return data if _equal(importer.shape(node.args[0]), shape) else _R.broadcast_to(data, shape)


def _copy(importer: Any, node: Any) -> Any:
    """Convert ``copy(into, source)``: the source with the type and shape of ``into``."""
    source = importer.tensor(node.args[1], importer.dtype(node))
    shape = importer.shape(node)
    return source if _equal(importer.shape(node.args[1]), shape) else _R.broadcast_to(source, shape)


def _repeat(importer: Any, node: Any) -> Any:
    """Repeat by broadcasting a new axis before each axis and merging both."""
    data, wanted = importer.tensor(node.args[0]), importer.shape(node)
    shape = importer.shape(node.args[0])
    shape = [1] * (len(wanted) - len(shape)) + shape
    times = [importer.value(count) for count in node.args[1]]
    apart, repeated = [], []
    for extent, count in zip(shape, times, strict=True):
        apart += [1, extent]
        repeated += [count, extent]
    data = importer.emit(_R.reshape(data, apart))
    return _R.reshape(importer.emit(_R.broadcast_to(data, repeated)), wanted)


def _from_front(importer: Any, given: Any, extent: Any) -> Any:
    """Return an index of an axis, counted from its end where it is known to be negative, as that of ``x[-n:]``."""
    index = importer.value(given)
    meta = given if isinstance(given, int) else given.meta["val"]
    negative = meta < 0 if isinstance(meta, int) else meta.node.expr.is_negative
    return index + extent if negative else index


def slice_bounds(importer: Any, node: Any, first: int) -> tuple[int, Any, int]:
    """Return axis, start and step of a slice, which are arguments of a node from the ``first`` one on.

    Torch has checked that the start is within a symbolic extent.
    """
    source = importer.shape(node.args[0])
    axis = argument(node, first, "dim", 0) % len(source)
    given, step = argument(node, first + 1, "start"), argument(node, first + 3, "step", 1)
    extent = source[axis]
    start = 0 if given is None else _from_front(importer, given, extent)
    if isinstance(start, int) and isinstance(extent, int):
        start = min(max(start, 0), extent)
    elif isinstance(given, int) and given < 0:
        start = tirx.max(start, 0)
    return axis, start, step


def _slice(importer: Any, node: Any) -> Any:
    shape, source = importer.shape(node), importer.shape(node.args[0])
    data = importer.tensor(node.args[0])
    axis, start, step = slice_bounds(importer, node, 1)
    if _equal(shape, source):
        return data
    end = start + shape[axis] * step
    return strided_slice(data, axis, start, end, step)


def strided_slice(data: Any, axis: int, start: Any, end: Any, step: int = 1) -> Any:
    return _R.strided_slice(data, [axis], [start], [end], [step], assume_inbound=True)


def _select(importer: Any, node: Any) -> Any:
    source = importer.shape(node.args[0])
    axis = node.args[1] % len(source)
    index = _from_front(importer, node.args[2], source[axis])
    taken = importer.emit(strided_slice(importer.tensor(node.args[0]), axis, index, index + 1))
    return _R.squeeze(taken, [axis])


def _split(importer: Any, node: Any) -> Any:
    source = importer.shape(node.args[0])
    axis = argument(node, 2, "dim", 0) % len(source)
    sizes = [importer.symbols.extent(meta.shape[axis]) for meta in node.meta["val"]]
    data, start, parts = importer.tensor(node.args[0]), 0, []
    if all(isinstance(size, int) for size in sizes):
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes) - 1)]
        return importer.emit(_R.split(data, ends, axis)) if ends else relax.Tuple([data])
    for size in sizes:
        parts.append(importer.emit(strided_slice(data, axis, start, start + size)))
        start = start + size
    return relax.Tuple(parts)


def _unbind(importer: Any, node: Any) -> Any:
    axis = argument(node, 1, "dim", 0) % node.args[0].meta["val"].ndim
    data = importer.tensor(node.args[0])
    count = len(node.meta["val"])
    slices = [importer.emit(strided_slice(data, axis, index, index + 1)) for index in range(count)]
    return relax.Tuple([importer.emit(_R.squeeze(part, [axis])) for part in slices])


def _getitem(importer: Any, node: Any) -> Any:
    source, index = importer.env[node.args[0]], node.args[1]
    if isinstance(source, relax.Tuple | list | tuple):
        return source[index]
    if isinstance(source.ty, relax.TupleType):
        return relax.TupleGetItem(source, index)
    if index:
        raise ValueError(f"result {index} of {node.args[0].target} is not supported")
    return source


def _cat(importer: Any, node: Any) -> Any:
    """Concatenate; torch skips empty 1-D tensors, whatever the rank of the others."""
    dtype, rank = importer.dtype(node), node.meta["val"].ndim
    parts = [part for part in node.args[0] if not (rank > 1 and part.meta["val"].ndim == 1)]
    axis = argument(node, 1, "dim", 0) % rank
    parts = [part for part in parts if importer.shape(part)[axis] != 0]
    tensors = [importer.tensor(part, dtype) for part in parts]
    return tensors[0] if len(tensors) == 1 else _R.concat(tensors, axis)


def _stack(importer: Any, node: Any) -> Any:
    dtype, rank = importer.dtype(node), node.meta["val"].ndim
    axis = argument(node, 1, "dim", 0) % rank
    parts = [importer.emit(_R.expand_dims(importer.tensor(part, dtype), [axis])) for part in node.args[0]]
    return _R.concat(parts, axis) if len(parts) > 1 else parts[0]


def _pad(importer: Any, node: Any) -> Any:
    """Pad with a constant; negative widths crop."""
    widths, value = list(node.args[1]), argument(node, 2, "value", 0)
    data, shape = importer.tensor(node.args[0]), importer.shape(node.args[0])
    for index in range(0, len(widths), 2):
        axis = len(shape) - 1 - index // 2
        before, after = (importer.value(width) for width in widths[index : index + 2])
        if not isinstance(before, int) or not isinstance(after, int):
            raise ValueError("symbolic padding is not supported")
        if before < 0 or after < 0:
            start, end = max(-before, 0), shape[axis] - max(-after, 0)
            data = importer.emit(strided_slice(data, axis, start, end))
        widths[index : index + 2] = [max(before, 0), max(after, 0)]
    if not any(widths):
        return data
    pairs = [0] * (2 * len(shape))
    for index in range(0, len(widths), 2):
        axis = len(shape) - 1 - index // 2
        pairs[2 * axis : 2 * axis + 2] = widths[index : index + 2]
    return _R.nn.pad(data, pairs, "constant", value)


def _equal(a: list[Any], b: list[Any]) -> bool:
    """Tell whether two shapes are structurally equal."""
    return len(a) == len(b) and all(map(_equal_extents, a, b))


def _equal_extents(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(expr_deep_equal(a, b))


VIEWS: Mapping[str, Callable[[Any, Any], Any]] = {
    "alias.default": _same,
    "clone.default": _same,
    "contiguous.default": _same,
    "detach.default": _same,
    "view.default": _reshape,
    "_unsafe_view.default": _reshape,
    "reshape.default": _reshape,
    "flatten.using_ints": _reshape,
    "unflatten.int": _reshape,
    "unsqueeze.default": _unsqueeze,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "permute.default": _permute,
    "transpose.int": _transpose,
    "expand.default": _expand,
    "copy.default": _copy,
    "repeat.default": _repeat,
    "slice.Tensor": _slice,
    "select.int": _select,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "unbind.int": _unbind,
    "getitem": _getitem,
    "cat.default": _cat,
    "stack.default": _stack,
    "constant_pad_nd.default": _pad,
}

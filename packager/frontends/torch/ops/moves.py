"""Converters of torch's operators that move elements to places known at build time: windows, strides, diagonals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax, te

from packager.frontends.torch.ops.program import LARGEST_KNOWN, axis_of

_R = relax.op


def _moved(importer: Any, node: Any) -> Any:
    """Take each element of the result from where torch finds it: the operator runs on the places of all elements."""
    operands = [operand for operand in node.args if isinstance(operand, torch.fx.Node)]
    shapes = [importer.shape(operand) for operand in operands]
    sizes = [math.prod(shape) for shape in (*shapes, importer.shape(node))]
    if not all(isinstance(size, int) for size in sizes) or max(sizes) > LARGEST_KNOWN:
        raise ValueError(f"it is supported for static shapes of at most {LARGEST_KNOWN} elements")
    places: dict[Any, torch.Tensor] = {}
    begin = 0
    for operand, shape, size in zip(operands, shapes, sizes, strict=False):
        places[operand] = torch.arange(begin, begin + size).reshape(shape)
        begin += size
    arguments = (places[value] if isinstance(value, torch.fx.Node) else value for value in node.args)
    taken = node.target(*arguments, **node.kwargs)
    dtype = importer.dtype(node)
    parts = [importer.emit(_R.reshape(importer.tensor(operand, dtype), [-1])) for operand in operands]
    whole = importer.emit(_R.concat(parts, 0)) if len(parts) > 1 else parts[0]
    return _R.take(whole, relax.const(taken.contiguous().numpy(), "int64"), axis=0)


def _as_strided(importer: Any, node: Any) -> Any:
    """Convert a view by strides of a tensor whose elements follow one another in memory."""
    meta = node.args[0].meta["val"]
    if not meta.is_contiguous() or meta.storage_offset():
        raise ValueError("strides of a tensor that is not contiguous are not supported")
    return _moved(importer, node)


def _windows(importer: Any, node: Any) -> Any:
    """Convert ``Tensor.unfold``: the windows of an axis, whose elements become the last axis."""
    axis, step, shape = axis_of(node, 1), node.args[3], importer.shape(node)
    data = importer.tensor(node.args[0])
    if not node.args[0].meta["val"].ndim:
        return _R.reshape(data, shape)

    def compute(x: Any) -> Any:
        return te.compute(shape, lambda *i: x(*i[:axis], i[axis] * step + i[-1], *i[axis + 1 : -1]), name="windows")

    return importer.block_builder.call_te(compute, data, primfunc_name_hint="windows")


MOVES: Mapping[str, Callable[[Any, Any], Any]] = {
    "as_strided.default": _as_strided,
    "as_strided_scatter.default": _as_strided,
    "diagonal_scatter.default": _moved,
    "unfold.default": _windows,
}

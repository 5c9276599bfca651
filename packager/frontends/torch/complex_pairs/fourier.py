"""Converters of torch's Fourier transforms, of one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from packager.frontends.fourier import fourier
from packager.frontends.torch.complex_pairs.arithmetic import stacked, unstacked

_R = relax.op


def _from_real(importer: Any, node: Any) -> Any:
    """Convert ``_fft_r2c``; of the last of the axes half of the spectrum may be enough."""
    data, dims, scaling, onesided = node.args
    *others, last = _axes(node, dims)
    rank = node.meta["val"].ndim
    real = importer.emit(_R.expand_dims(importer.tensor(data, importer.dtype(node)), [rank]))
    values = _transform(importer, real, last, _extent(importer, data, last), onesided=onesided)
    for axis in others:
        values = _transform(importer, values, axis, _extent(importer, data, axis))
    values = _scaled(importer, values, scaling, _length(importer, data, dims), 1.0)
    return unstacked(importer.emit, values, rank)


def _from_complex(importer: Any, node: Any) -> Any:
    """Convert ``_fft_c2c``."""
    data, dims, scaling, forward = node.args
    rank = node.meta["val"].ndim
    values = stacked(importer.emit, importer.value(data), rank)
    for axis in _axes(node, dims):
        values = _transform(importer, values, axis, _extent(importer, data, axis), inverse=not forward)
    length = _length(importer, data, dims)
    values = _scaled(importer, values, scaling, length, 1.0 if forward else 1 / length)
    return unstacked(importer.emit, values, rank)


def _to_real(importer: Any, node: Any) -> Any:
    """Convert ``_fft_c2r``, of which the data have half of the spectrum along the last of the axes."""
    data, dims, scaling, _ = node.args
    *others, last = _axes(node, dims)
    rank = node.meta["val"].ndim
    values = stacked(importer.emit, importer.value(data), rank)
    for axis in others:
        values = _transform(importer, values, axis, _extent(importer, data, axis), inverse=True)
    values = _transform(importer, values, last, _extent(importer, node, last), inverse=True, onesided=True)
    length = _length(importer, node, dims)
    return _R.squeeze(_scaled(importer, values, scaling, length, 1 / length), [rank])


def _axes(node: Any, dims: Any) -> list[int]:
    return [int(dim) % node.meta["val"].ndim for dim in dims]


def _extent(importer: Any, node: Any, axis: int) -> int:
    extent = importer.shape(node)[axis]
    if not isinstance(extent, int):
        raise ValueError("the axis of a Fourier transform is symbolic")
    return extent


def _length(importer: Any, node: Any, dims: Any) -> int:
    """Return how many numbers a transform is of."""
    return math.prod(_extent(importer, node, dim) for dim in dims)


def _transform(
    importer: Any, values: Any, axis: int, length: int, *, inverse: bool = False, onesided: bool = False
) -> Any:
    return importer.emit(fourier(importer.block_builder, values, axis, length, inverse=inverse, onesided=onesided))


def _scaled(importer: Any, values: Any, scaling: int, length: int, own: float) -> Any:
    """Scale by what torch's number of a scaling says, where the transforms have scaled by ``own``."""
    factor = (1.0, 1 / math.sqrt(length), 1 / length)[scaling] / own
    if factor == 1:
        return values
    return importer.emit(_R.multiply(values, relax.const(factor, str(values.ty.dtype))))


FOURIER: Mapping[str, Callable[[Any, Any], Any]] = {
    "_fft_r2c.default": _from_real,
    "_fft_c2c.default": _from_complex,
    "_fft_c2r.default": _to_real,
}

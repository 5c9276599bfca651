"""Arithmetic of complex numbers as pairs of real tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tvm import relax

from packager.frontends.torch.ops.views import strided_slice

_R = relax.op


@dataclass(frozen=True)
class Complex:
    """The real and the imaginary part of a tensor, or of each tensor of a tuple.

    Between converters both are there; within one, an imaginary part that is None is 0.
    """

    real: Any
    imaginary: Any


def is_complex(argument: Any) -> bool:
    """Tell whether an argument of a node is a complex number, or a node of complex tensors."""
    if not isinstance(argument, torch.fx.Node):
        return isinstance(argument, complex)
    meta = argument.meta.get("val")
    values = meta if isinstance(meta, tuple | list) else [meta]
    return any(isinstance(value, torch.Tensor) and value.dtype.is_complex for value in values)


def add_parts(emit: Any, a: Any, b: Any, add: Callable[[Any, Any], Any] = _R.add) -> Any:
    """Return ``a + b``, or ``a - b``, of parts that may be None."""
    if b is None:
        return a
    if a is None:
        return b if add is _R.add else emit(_R.negative(b))
    return emit(add(a, b))


def multiply(emit: Any, a: Complex, b: Complex, product: Callable[[Any, Any], Any] = _R.multiply) -> Complex:
    """Return the product, or the matrix product."""

    def of(x: Any, y: Any) -> Any:
        return None if x is None or y is None else emit(product(x, y))

    real = add_parts(emit, of(a.real, b.real), of(a.imaginary, b.imaginary), _R.subtract)
    return Complex(real, add_parts(emit, of(a.real, b.imaginary), of(a.imaginary, b.real)))


def conjugate(emit: Any, a: Complex) -> Complex:
    return Complex(a.real, None if a.imaginary is None else emit(_R.negative(a.imaginary)))


def _squared_size(emit: Any, a: Complex) -> Any:
    parts = [emit(_R.multiply(part, part)) for part in (a.real, a.imaginary) if part is not None]
    return add_parts(emit, parts[0], parts[1] if len(parts) > 1 else None)


def divide(emit: Any, a: Complex, b: Complex) -> Complex:
    size = b.real
    if b.imaginary is not None:
        a, size = multiply(emit, a, conjugate(emit, b)), _squared_size(emit, b)
    return Complex(*(None if part is None else emit(_R.divide(part, size)) for part in (a.real, a.imaginary)))


def absolute(emit: Any, a: Complex) -> Any:
    return emit(_R.sqrt(_squared_size(emit, a)))


def angle(emit: Any, a: Complex) -> Any:
    return emit(_R.atan2(a.imaginary, a.real))


def from_polar(emit: Any, size: Any, turned: Any) -> Complex:
    return Complex(*(emit(_R.multiply(size, emit(function(turned)))) for function in (_R.cos, _R.sin)))


def exponential(emit: Any, a: Complex) -> Complex:
    return from_polar(emit, emit(_R.exp(a.real)), a.imaginary)


def logarithm(emit: Any, a: Complex) -> Complex:
    return Complex(emit(_R.log(absolute(emit, a))), angle(emit, a))


def square_root(emit: Any, a: Complex) -> Complex:
    half = relax.const(0.5, str(a.real.ty.dtype))
    return from_polar(emit, emit(_R.sqrt(absolute(emit, a))), emit(_R.multiply(angle(emit, a), half)))


def stacked(emit: Any, data: Complex, axis: int) -> Any:
    """Return both parts in a new last axis, which is ``axis``."""
    return emit(_R.concat([emit(_R.expand_dims(part, [axis])) for part in (data.real, data.imaginary)], axis))


def unstacked(emit: Any, data: Any, axis: int) -> Complex:
    """Return the parts that the last axis, ``axis``, of a real tensor has."""
    parts = (emit(strided_slice(data, axis, part, part + 1)) for part in range(2))
    return Complex(*(emit(_R.squeeze(part, [axis])) for part in parts))

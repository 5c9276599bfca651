"""Symbolic values of variables in a quantized model, before code is emitted for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packager.bundle.arrays import Array

NO_BOUNDS = (-np.inf, np.inf)


@dataclass(frozen=True)
class Quantized:
    """The tensor ``scale * (value - zero)``; ``value`` is an expression of an integer type.

    ``scale`` and ``zero`` have ``value``'s rank and broadcast to its shape, or are scalars of rank 0; ``zero`` is an
    expression if computed at run time. ``array`` is the value of a constant. ``sources`` are the constants it derives
    from. ``dtype`` is the type of the numbers.
    """

    value: Any
    scale: Array
    zero: Any
    dtype: str
    array: Array | None = None
    sources: tuple[str, ...] = ()

    @property
    def stored(self) -> str:
        """The integer type."""
        return str(self.value.ty.dtype)

    @property
    def is_uniform(self) -> bool:
        """Whether it is quantized per tensor, with a constant zero point."""
        return self.scale.size == 1 and isinstance(self.zero, np.ndarray) and self.zero.size == 1

    def same_numbers(self, scale: Array, zero: Array, stored: str) -> bool:
        """Whether it has this type, scale and zero point."""
        return (
            self.is_uniform
            and self.stored == stored
            and scale.size == zero.size == 1
            and self.scale.item() == scale.item()
            and self.zero.item() == zero.item()
        )


@dataclass(frozen=True)
class Term:
    """``factor * (value + whole)``: accumulators, or a quantized tensor. ``whole`` is int32.

    ``factor`` and ``whole`` broadcast to the shape of ``value``; ``limit`` is an upper bound on the magnitude of
    ``value``.
    """

    value: Any
    factor: Array
    limit: float
    whole: Array | None = None

    @property
    def largest(self) -> float:
        """An upper bound on its magnitude."""
        added = 0.0 if self.whole is None else float(np.abs(self.whole.astype(np.float64)).max(initial=0))
        return float(np.abs(self.factor).max(initial=0)) * (self.limit + added)


@dataclass(frozen=True)
class Linear:
    """A sum of terms and an offset, clipped to ``bounds``: can be requantized without computing it in float32."""

    terms: tuple[Term, ...]
    offset: Array
    bounds: tuple[float, float] = NO_BOUNDS
    sources: tuple[str, ...] = ()

    @property
    def largest(self) -> float:
        """An upper bound on its magnitude, ignoring ``bounds``."""
        return sum(term.largest for term in self.terms) + float(np.abs(self.offset).max(initial=0))

    def clipped(self, low: float, high: float) -> Linear:
        """Return it clipped to further bounds."""
        mine = self.bounds
        return replace(self, bounds=(min(max(mine[0], low), high), min(max(mine[1], low), high)))


@dataclass(frozen=True)
class Concatenation:
    """A concatenation of quantized tensors along an axis, with possibly different scales."""

    parts: tuple[Quantized, ...]
    axis: int


@dataclass(frozen=True)
class Shifted:
    """A tensor of 8 bits, as ``value`` of the other type, which products read: ``value - 128`` or ``value + 128``."""

    value: Any


Value = Quantized | Linear | Concatenation | Shifted


def is_zero(array: Any) -> bool:
    """Whether it is a constant of zeros."""
    return isinstance(array, np.ndarray) and not array.any()


def per_axis(array: Array, axis: int, rank: int) -> Array:
    """Reshape a per-axis array to broadcast to a tensor of rank ``rank``."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def compact(array: Array) -> Array:
    """Reduce axes with equal elements to extent 1; to rank 0 if all elements are equal."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array.reshape(()) if array.size == 1 else array


def union(*sources: Sequence[str]) -> tuple[str, ...]:
    """Return the union of names, in order."""
    return tuple(dict.fromkeys(name for names in sources for name in names))

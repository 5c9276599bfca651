"""What the variables of a quantized model stand for, before it is decided how they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packager.bundle.arrays import Array

NO_BOUNDS = (-np.inf, np.inf)


@dataclass(frozen=True)
class Quantized:
    """The number ``scale * (value - zero)`` for every element of ``value``, an expression of an integer type.

    ``scale`` and ``zero`` have ``value``'s rank and broadcast to its shape, or are of one element and of rank 0;
    ``zero`` is an expression where it is computed at run time. ``array`` is the value of a constant. ``sources`` are
    the constants that all of it comes from. ``dtype`` is the type of the numbers.
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
        """Whether one scale and one zero point, both known, are for all elements."""
        return self.scale.size == 1 and isinstance(self.zero, np.ndarray) and self.zero.size == 1

    def same_numbers(self, scale: Array, zero: Array, stored: str) -> bool:
        """Whether it is of this type, and stands for numbers by this scale and zero point."""
        return (
            self.is_uniform
            and self.stored == stored
            and scale.size == zero.size == 1
            and self.scale.item() == scale.item()
            and self.zero.item() == zero.item()
        )


@dataclass(frozen=True)
class Term:
    """``factor * (value + whole)``: sums of products, or elements of a quantized tensor. ``whole`` is int32.

    ``factor`` and ``whole`` broadcast to the shape of ``value``, whose magnitude is at most ``limit``.
    """

    value: Any
    factor: Array
    limit: float
    whole: Array | None = None

    @property
    def largest(self) -> float:
        """What its magnitude is at most."""
        added = 0.0 if self.whole is None else float(np.abs(self.whole.astype(np.float64)).max(initial=0))
        return float(np.abs(self.factor).max(initial=0)) * (self.limit + added)


@dataclass(frozen=True)
class Linear:
    """A sum of terms and an offset, clipped to ``bounds``: what can be quantized again without being computed."""

    terms: tuple[Term, ...]
    offset: Array
    bounds: tuple[float, float] = NO_BOUNDS
    sources: tuple[str, ...] = ()

    @property
    def largest(self) -> float:
        """What its magnitude is at most, bounds aside."""
        return sum(term.largest for term in self.terms) + float(np.abs(self.offset).max(initial=0))

    def clipped(self, low: float, high: float) -> Linear:
        """Return it with bounds that hold for its result."""
        mine = self.bounds
        return replace(self, bounds=(min(max(mine[0], low), high), min(max(mine[1], low), high)))


@dataclass(frozen=True)
class Joined:
    """Quantized tensors, one after the other along an axis: they may have scales of their own."""

    parts: tuple[Quantized, ...]
    axis: int


def is_zero(array: Any) -> bool:
    """Whether it is known, and nothing but zeros."""
    return isinstance(array, np.ndarray) and not array.any()


def along(array: Array, axis: int, rank: int) -> Array:
    """Return what an axis has an element each for, with the rank of the tensor."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if index == axis % rank else 1 for index in range(rank)])


def compact(array: Array) -> Array:
    """Return an array with axes of extent 1 where all of an axis is the same; of rank 0 if everything is."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array.reshape(()) if array.size == 1 else array


def merged(*sources: Sequence[str]) -> tuple[str, ...]:
    """Return names, each once."""
    return tuple(dict.fromkeys(name for names in sources for name in names))

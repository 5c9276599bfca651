"""Adds the masks of attention up to one: a factor and a tensor that turn a product into the operand of its softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.attention.masks import MASKED, known_mask
from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import Bindings


@dataclass(frozen=True)
class MaskStep:
    """An operator between the first matmul and the softmax, and the shape of its result.

    ``number`` is a factor (``scale``, and the sign of the ``tensor`` to ``add``), or what scores become that a boolean
    ``tensor`` does not ``keep``, or does ``drop``. ``rows`` of scores have a factor each, ``tensor`` to
    the power of ``number``, which is 1 or -1.
    """

    kind: Literal["view", "scale", "rows", "add", "keep", "drop"]
    shape: tuple[Any, ...]
    number: float = 1.0
    tensor: Any = None


@dataclass(frozen=True)
class Mask:
    """A tensor [batch or 1, heads or 1, queries or 1, keys] that is added to scores, and its value if it is known."""

    tensor: Any
    array: Array | None

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing."""
        return self.array is not None and not self.array.any()

    @property
    def leaves_scores(self) -> bool:
        """Whether each row is known to keep a finite score."""
        return self.array is not None and bool((self.array > -np.inf).any(-1).all())


class _UnsupportedError(Exception):
    """A tensor is no mask of four axes."""


class Masks:
    """Computes masks, and their values where they depend on constants alone."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow
        self.known: IdentityMap[Array | None] = IdentityMap()

    def affine(
        self, made: Bindings, steps: Sequence[MaskStep], product: tuple[Any, ...], whole: tuple[Any, ...]
    ) -> tuple[float, Mask | None] | None:
        """Return what ``steps`` make of a product: its factor, and what is added to it as ``whole``, if anything.

        ``product`` is its shape. None if it is no such sum. Factors of ``rows`` are the caller's: they may come before
        masks, in the shape of the product.
        """
        scale, mask, shape, replaced = 1.0, None, product, -math.inf
        try:
            for place, step in enumerate(steps):
                if step.kind == "view":
                    _require_views(step.shape, whole)
                elif step.kind == "rows":
                    if mask is not None or not all(same(each.shape, product) for each in steps[: place + 1]):
                        return None
                elif step.kind == "scale":
                    scale, replaced = scale * step.number, replaced * step.number
                    mask = mask and self._scaled(made, mask, step.number)
                else:
                    added = self._four_axes(made, step.tensor, shape, whole)
                    mask = self._with(made, mask, added, step)
                    replaced = replaced if step.kind == "add" else max(replaced, step.number)
                shape = step.shape
        except _UnsupportedError:
            return None
        # A number that has a weight next to other scores is no mask.
        return (scale, mask) if replaced <= MASKED else None

    def _scaled(self, made: Bindings, mask: Mask, number: float) -> Mask:
        if number == 1.0:
            return mask
        tensor = made.bind(relax.op.multiply(mask.tensor, relax.const(number, made.dtype)))
        return Mask(tensor, None if mask.array is None else mask.array * np.float32(number))

    def _with(self, made: Bindings, mask: Mask | None, other: Mask, step: MaskStep) -> Mask:
        """Add a step's tensor to a mask; of a boolean one, its number where scores are replaced by that."""
        zero = mask or Mask(relax.const(0.0, made.dtype), np.zeros((1, 1, 1, 1), np.float32))
        if step.kind == "add":
            if str(other.tensor.ty.dtype) != made.dtype:
                other = replace(other, tensor=made.bind(relax.op.astype(other.tensor, made.dtype)))
            other = self._scaled(made, other, step.number)
            if mask is None:
                return other
            tensor = made.bind(relax.op.add(mask.tensor, other.tensor))
            return Mask(tensor, _both(mask, other, np.add))
        number = relax.const(step.number, made.dtype)
        keeps = step.kind == "keep"
        choices = (zero.tensor, number) if keeps else (number, zero.tensor)
        tensor = made.bind(relax.op.where(other.tensor, *choices))
        low = np.float32(step.number)
        array = _both(zero, other, lambda a, chosen: np.where(chosen, *((a, low) if keeps else (low, a))))
        return Mask(tensor, array)

    def _four_axes(self, made: Bindings, tensor: Any, shape: tuple[Any, ...], whole: tuple[Any, ...]) -> Mask:
        """Return a tensor that broadcasts to scores of ``shape`` as one that broadcasts to ``whole``."""
        tensor = self._chosen(made, tensor)
        extents = shape_of(tensor)
        if extents is None or len(extents) > len(shape):
            raise _UnsupportedError
        number = scalar_of(tensor)
        array = np.asarray(number) if number is not None else self._value(tensor)
        padded = (*[1] * (len(shape) - len(extents)), *extents)
        lead = _leading(padded[:-2], shape[:-2], whole[:2])
        # What merges into one axis is repeated first, and so is what all keys have in common.
        spread = (*lead.repeated, padded[-2], shape[-1])
        wanted = (*lead.merged, padded[-2], shape[-1])
        if not same(spread, padded):
            tensor = made.bind(relax.op.broadcast_to(tensor, list(spread)))
        elif not same(padded, extents) or not same(wanted, padded):
            tensor = made.bind(relax.op.reshape(tensor, list(wanted)))
        if not same(spread, padded) and not same(wanted, spread):
            tensor = made.bind(relax.op.reshape(tensor, list(wanted)))
        static = all(isinstance(extent, int) for extent in (*spread, *wanted))
        known = array is not None and static
        return Mask(tensor, np.broadcast_to(array, spread).reshape(wanted) if known and array is not None else None)

    def _chosen(self, made: Bindings, tensor: Any) -> Any:
        """Return a mask narrowed, and so the condition by which it is chosen from two numbers."""
        tensor = self._narrowed(tensor)
        choice = self.flow.call(tensor, "where")
        if choice is None or any(scalar_of(number) is None for number in choice.args[1:]):
            return tensor
        condition = self._narrowed(choice.args[0])
        if condition.same_as(choice.args[0]):
            return tensor
        numbers = (relax.const(scalar_of(number), made.dtype) for number in choice.args[1:])
        return made.bind(relax.op.where(condition, *numbers))

    def _narrowed(self, tensor: Any) -> Any:
        """Return a mask before it is repeated, and without a condition that is always true."""
        while True:
            value = self.flow.value(tensor)
            if operator_of(value) == "broadcast_to":
                tensor = value.args[0]
            elif operator_of(value) == "logical_and":
                first, second = value.args
                true = [(array := self._value(side)) is not None and bool(array.all()) for side in (first, second)]
                if not any(true):
                    return tensor
                tensor = second if true[0] else first
            else:
                return tensor

    def _value(self, tensor: Any) -> Array | None:
        if tensor not in self.known:
            self.known[tensor] = known_mask(self.flow, tensor)
        return self.known[tensor]


@dataclass(frozen=True)
class _Leading:
    """The axes of a mask before rows and keys: ``repeated`` so that they can become the two ``merged`` ones."""

    repeated: tuple[Any, ...]
    merged: tuple[Any, ...]


def _leading(own: tuple[Any, ...], axes: tuple[Any, ...], wanted: tuple[Any, ...]) -> _Leading:
    """Map the leading axes of a mask of scores with leading ``axes`` to those of scores with batch and heads."""
    if same(axes, wanted):
        return _Leading(own, own)
    if all(same(extent, 1) for extent in own):
        return _Leading(own, (1, 1))
    batch, heads = wanted
    if len(axes) == 1 and same(axes[0], batch * heads):
        return _Leading(own, wanted)
    if len(axes) > 1 and same(axes[-1], heads) and same(math.prod(axes[:-1]), batch):
        if all(same(extent, 1) for extent in own[:-1]):
            return _Leading(own, (1, own[-1]))
        return _Leading((*axes[:-1], own[-1]), (batch, own[-1]))
    raise _UnsupportedError


def _require_views(shape: tuple[Any, ...], whole: tuple[Any, ...]) -> None:
    """Require that scores of a shape have the rows and keys of ``whole``, and its batch times heads before them."""
    if not same(tuple(shape[-2:]), tuple(whole[-2:])) or not same(math.prod(shape[:-2]), whole[0] * whole[1]):
        raise _UnsupportedError


def _both(first: Mask, second: Mask, function: Any) -> Array | None:
    if first.array is None or second.array is None:
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(first.array, second.array))

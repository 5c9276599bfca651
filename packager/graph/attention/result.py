"""Finds how far a result of attention is read as it can be written: heads of rows, or rows of heads.

Replays the views behind the second matmul on a numpy array with the strides of each layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.graph.attention.heads import number_of
from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, shape_of
from packager.graph.identity import IdentityMap


def find_result(flow: Dataflow, product: Any, shape: Sequence[Any]) -> tuple[bool, list[Any]]:
    """Return whether rows precede heads in the result, and the views after the matmul that transpose it.

    ``shape`` is the result's [batch, heads, rows, depth].
    """
    heads_of_rows, rows_of_heads = (_views(flow, product, shape, rows_first) for rows_first in (False, True))
    rows_first = len(rows_of_heads) > len(heads_of_rows)
    return rows_first, rows_of_heads if rows_first else heads_of_rows


def _views(flow: Dataflow, product: Any, shape: Sequence[Any], rows_first: bool) -> list[Any]:
    """Return the views up to the last one that has all elements in the order of this layout."""
    # Two choices of symbolic extents: what is contiguous for both is so for all.
    choices = [_Layout(shape, shift, rows_first) for shift in (0, 1)]
    length = (shape[1] if rows_first else 1) * shape[3]
    variable, covered, best = product, [], 0
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        variable = readers[0]
        call = flow.value(variable)
        if not all(choice.view(call, shape_of(variable) or ()) for choice in choices):
            break
        covered.append(variable)
        if all(choice.is_whole for choice in choices) and _has_rows(shape_of(variable) or (), length):
            best = len(covered)
    return covered[:best]


class _Layout:
    """A result's array for one choice of symbolic extents; [batch * heads, rows, depth] stands as four axes."""

    def __init__(self, shape: Sequence[Any], shift: int, rows_first: bool) -> None:
        self.shift = shift
        self.numbers: IdentityMap[int] = IdentityMap()
        batch, heads, rows, depth = self.sizes = self.known(shape)
        self.array: NDArray[Any] = np.zeros((1,), np.int8)
        if min(self.sizes) > 0:
            order = (batch, rows, heads, depth) if rows_first else self.sizes
            self.array = np.zeros(order, np.int8)  # untouched memory: it takes none
            self.array = self.array.transpose(0, 2, 1, 3) if rows_first else self.array

    @property
    def is_whole(self) -> bool:
        """Whether the elements are in the order in which they lie in memory."""
        return bool(self.array.flags.c_contiguous)

    def known(self, extents: Sequence[Any]) -> tuple[int, ...]:
        """Return extents with a number for each symbolic one."""
        return tuple(number_of(extent, self.numbers, self.shift) for extent in extents)

    def view(self, call: Any, shape: Sequence[Any]) -> bool:
        """Replay a call with a result of ``shape``; return whether it is a view."""
        axes, wanted = axes_of(call), self.known(shape)
        if axes is not None and len(shape) == self.array.ndim:
            self.array = self.array.transpose(axes)
            return True
        if operator_of(call) != "reshape" or any(size < 0 for size in wanted):
            return False
        if wanted == self.array.shape:  # of heads and batch as one axis, which stand apart
            return True
        view = self.array.view()
        try:
            view.shape = wanted
        except (AttributeError, ValueError):
            return False
        self.array = view
        return True


def _has_rows(extents: Sequence[Any], length: Any) -> bool:
    """Whether the last axes of a tensor have ``length`` elements."""
    return any(same(math.prod(extents[axis:]), length) for axis in range(len(extents)))

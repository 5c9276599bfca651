"""Permutations of axes: which loop nest moves the elements, and the axes that stay together, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.backends.ccompiler.core.shapes import Extent, Shape, equal, product

# The maximum of channel groups that an unrolled loop interleaves, and of channels of planes.
MOST_GROUPS = 16


@dataclass(frozen=True)
class Permutation:
    """Extents of a source, and for each axis of the result the axis of the source that it is.

    Axes of extent 1 are left out; consecutive axes that stay so are one.
    """

    extents: tuple[Extent, ...]
    axes: tuple[int, ...]

    @property
    def strides(self) -> tuple[Extent, ...]:
        """The strides of the source's axes."""
        return tuple(product(self.extents[axis + 1 :]) for axis in range(len(self.extents)))

    @property
    def pitches(self) -> tuple[Extent, ...]:
        """The strides in the result of the source's axes."""
        lying = [self.extents[axis] for axis in self.axes]
        return tuple(product(lying[self.axes.index(axis) + 1 :]) for axis in range(len(self.axes)))


def permutation_of(extents: Sequence[Extent], axes: Sequence[int]) -> Permutation:
    """Return the permutation of a shape by ``axes``, of as few axes as can be."""
    runs: list[list[int]] = []
    for axis in axes:
        if equal(extents[axis], 1):
            continue
        skipped = runs and all(equal(extents[between], 1) for between in range(runs[-1][-1] + 1, axis))
        if skipped and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(runs)
    merged = tuple(product(extents[axis] for axis in run) for run in order)
    return Permutation(merged, tuple(order.index(run) for run in runs))


def interleaves(extents: Sequence[Extent], axes: Sequence[int]) -> bool:
    """Whether the last two axes are swapped, groups of channels and the channels of a group, and groups are few.

    ``extents`` are those of the source.
    """
    rank = len(axes)
    swapped = rank > 1 and list(axes) == [*range(rank - 2), rank - 1, rank - 2]
    static = swapped and all(isinstance(extent, int) for extent in extents[-2:])
    return static and 1 < extents[-2] <= MOST_GROUPS


def makes_channels_last(extents: Sequence[Extent], axes: Sequence[int]) -> bool:
    """Whether NCHW of few channels becomes NHWC. ``extents`` are those of the source."""
    return list(axes) == [0, 2, 3, 1] and isinstance(extents[1], int) and 1 <= extents[1] <= MOST_GROUPS


def is_transpose(shape: Shape, axes: Sequence[int]) -> bool:
    """Whether a permutation has a loop nest without an epilogue: it is none of those above."""
    return not interleaves(shape, axes) and not makes_channels_last(shape, axes)

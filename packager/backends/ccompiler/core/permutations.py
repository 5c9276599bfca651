"""Permutations of axes that have a loop nest with an epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.ccompiler.core.shapes import Extent

# The maximum of channel groups that an unrolled loop interleaves, and of channels of planes.
MOST_GROUPS = 16


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

"""Convolutions of groups by matrix instructions: which channels a tile of filters multiplies, and its weights.

A tile of ``width`` filters reads a run of channels that has those of all its filters' groups, from the first of its
first filter's group on; weights are zero where a channel is not of the filter's group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

WIDTHS = (128, 64)
STEP = 64
"""Channels that kernels read at a time."""


def group_width(channels: int, filters: int, groups: int) -> int:
    """Return the filters of a tile: those with which less is multiplied."""

    def multiplied(width: int) -> int:
        return -(-filters // width) * width * part_channels(channels, filters, groups, width)

    return min(WIDTHS, key=multiplied)


def part_channels(channels: int, filters: int, groups: int, width: int) -> int:
    """Return the channels that each tile of ``width`` filters reads, in whole steps."""
    inner, most = channels // groups, 0
    for first in range(0, filters, width):
        last = min(first + width, filters) - 1
        end = (last * groups // filters + 1) * inner
        most = max(most, end - _first_channel(channels, filters, groups, first))
    return -(-most // STEP) * STEP


def pack_groups(weights: Array, channels: int, groups: int) -> Array:
    """Return weights [filters, height, width, channels / groups] as [filters, height, width, part_channels]."""
    filters, inner = len(weights), channels // groups
    width = group_width(channels, filters, groups)
    packed = np.zeros((*weights.shape[:3], part_channels(channels, filters, groups, width)), weights.dtype)
    for row in range(filters):
        first = _first_channel(channels, filters, groups, row // width * width)
        place = row * groups // filters * inner - first
        packed[row, :, :, place : place + inner] = weights[row]
    return packed


def _first_channel(channels: int, filters: int, groups: int, first: int) -> int:
    """Return the first channel that a tile reads whose first filter is ``first``."""
    return first * groups // filters * (channels // groups)

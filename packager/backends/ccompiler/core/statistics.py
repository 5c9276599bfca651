"""How the elements of a tensor that ``packager.normalize`` takes statistics of lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.ccompiler.core.shapes import Extent, Shape, equal, product
from packager.graph.dataflow import shape_of
from packager.graph.normalize import Normalization, attributes_of_call

# Elements of a row that one call takes several passes over.
LONGEST_ROW = 32768


@dataclass(frozen=True)
class Statistics:
    """A tensor as [images, channels, places], or [images, places, channels] with ``channels_last``.

    Statistics are of all places of each of ``groups`` groups of adjacent channels of an image.
    """

    images: Extent
    channels: Extent
    places: Extent
    groups: Extent
    channels_last: bool

    @property
    def are_rows(self) -> bool:
        """Whether statistics are of contiguous elements that fit the L2 cache, as far as is known: of a row."""
        short = not isinstance(self.places, int) or self.places <= LONGEST_ROW
        return not self.channels_last and equal(self.channels, self.groups) and short

    @property
    def inner(self) -> Extent:
        """The last extent."""
        return self.channels if self.channels_last else self.places


def statistics_of_call(call: Any) -> Statistics | None:
    """Return the statistics of a call of ``packager.normalize`` of float32, or None."""
    shape = shape_of(call)
    return statistics_of(Shape(shape), attributes_of_call(call.attrs)) if shape and call.ty.dtype == "float32" else None


def statistics_of(shape: Sequence[Extent], attributes: Normalization) -> Statistics | None:
    """Return the statistics of a normalization, or None where axes alternate otherwise."""
    channel = attributes.channel_axis
    if channel is not None and attributes.groups == 1 and _is_row(shape, (*attributes.axes, channel)):
        attributes, channel = Normalization((*attributes.axes, channel), attributes.epsilon), None
    kinds = [
        "channel" if axis == channel else "reduced" if axis in attributes.axes else "kept"
        for axis, extent in enumerate(shape)
        if not equal(extent, 1)
    ]
    extents = [extent for extent in shape if not equal(extent, 1)]
    runs: list[tuple[str, Extent]] = []
    for kind, extent in zip(kinds, extents, strict=True):
        if runs and runs[-1][0] == kind:
            extent = product((runs.pop()[1], extent))  # noqa: PLW2901  # axes of one kind are one
        runs.append((kind, extent))
    images = runs.pop(0)[1] if runs and runs[0][0] == "kept" else 1
    groups = attributes.groups
    match [kind for kind, _ in runs]:
        case [] | ["reduced"]:
            return Statistics(images, 1, product(extent for _, extent in runs), 1, channels_last=False)
        case ["channel"]:
            return Statistics(images, runs[0][1], 1, groups, channels_last=True)
        case ["channel", "reduced"]:
            return Statistics(images, runs[0][1], runs[1][1], groups, channels_last=False)
        case ["reduced", "channel"]:
            return Statistics(images, runs[1][1], runs[0][1], groups, channels_last=True)
        case ["reduced", "kept"]:
            return Statistics(images, runs[1][1], runs[0][1], runs[1][1], channels_last=True)
    return None


def _is_row(shape: Sequence[Extent], axes: tuple[int, ...]) -> bool:
    """Whether all that these axes have is a short row. What follows a longer one by channels is fused."""
    elements = product(shape[axis] for axis in axes)
    return isinstance(elements, int) and elements <= LONGEST_ROW

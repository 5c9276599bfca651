"""Lowers normalizations of groups of channels (Wu and He 2018, "Group Normalization", arXiv:1803.08494) for GPUs.

A thread block has a small group in registers, in one PrimFunc with what follows. Large ones have their statistics from
parts of images, and elementwise functions read these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.topi.utils import ravel_index, unravel_index

from packager.graph.dataflow import extents_of, shape_of, static_shape_of
from packager.graph.normalize import Normalization, normalize
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE
from packager.lower.blocks import UNKNOWN
from packager.lower.cuda.group_norms.schedule import threads_of
from packager.lower.cuda.group_norms.statistics import group_statistics, parts_of
from packager.lower.legalize.accumulate import FULL
from packager.lower.legalize.normalize import replace_norms

# Rows of so many elements are shared by blocks, if there are no more than this: on an H100 a block normalizes 511,488
# halves in 114 us, and 62,720 in 13. The columns that a row then has, best first.
LONG, ROWS, WIDTHS = 49152, 128, (512, 256, 1024, 128, 384, 640, 768, 320, 448, 192, 64)
# A group with channels last is a part of a line of memory at each place: a multiprocessor reads so many of them in the
# time of two launches more. Measured on an H200, which has that many.
MOST_PLACES, MULTIPROCESSORS = 1600, 132


def fuse_group_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Lower calls in ``main`` that normalize groups of images [N, ..., C], or of [N, C, ...] if registers hold them."""

    def fuse(builder: relax.BlockBuilder, data: Any, attributes: Normalization) -> relax.Expr:
        if channels := _channels_of_long_rows(data, attributes):
            return _normalize_long_rows(builder, data, attributes, channels)
        groups = groups_of(data, attributes)
        if groups is None:
            return normalize(data, attributes)
        if _fits_blocks(groups, data):
            compute, fusable = partial(_normalized, groups, attributes), {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
            return builder.call_te(compute, data, primfunc_name_hint="normalize_groups", primfunc_attrs=fusable)
        if groups.last:
            made = _by_parts(builder, data, groups, attributes)
            return normalize(data, attributes) if made is None else made
        shape = extents_of(data) or ()
        rows = builder.emit(relax.op.reshape(data, [shape[0], groups.number, groups.length]))
        of_rows = replace(attributes, axes=(2,), channel_axis=None, groups=1)
        return relax.op.reshape(builder.emit(fuse(builder, rows, of_rows)), shape)

    return replace_norms(module, fuse)


def _fits_blocks(groups: Groups, data: Any) -> bool:
    """Whether registers hold a group, and few threads of a multiprocessor read lines of memory for a part of them."""
    if not threads_of(groups.length, 1, int(tvm.runtime.DataType(data.ty.dtype).itemsize)):
        return False
    batch = (shape_of(data) or ())[0]
    blocks = (batch if isinstance(batch, int) else UNKNOWN) * groups.number
    return not groups.last or math.prod(groups.places) * -(-blocks // MULTIPROCESSORS) <= MOST_PLACES


def _channels_of_long_rows(data: Any, attributes: Normalization) -> int:
    """Return how many columns a matrix of each row gets, whose rows many blocks share; 0 if a block takes a row."""
    shape, axes = static_shape_of(data), attributes.axes
    if shape is None or attributes.channel_axis is not None or axes != tuple(range(axes[0], len(shape))):
        return 0
    length = math.prod(shape[axes[0] :])
    few = math.prod(shape[: axes[0]]) <= ROWS
    return next((c for c in WIDTHS if not length % c), 0) if few and length >= LONG else 0


def _normalize_long_rows(
    builder: relax.BlockBuilder, data: Any, attributes: Normalization, channels: int
) -> relax.Expr:
    """Return the normalization of few long rows, as of all channels and places of an image, as of one group of it."""
    shape = static_shape_of(data) or ()
    rows, length = math.prod(shape[: attributes.axes[0]]), math.prod(shape[attributes.axes[0] :])
    columns = builder.emit(relax.op.reshape(data, [rows, length // channels, channels]))
    groups = Groups((length // channels,), 1, channels, last=True)
    return relax.op.reshape(builder.emit(_by_parts(builder, columns, groups, attributes)), shape)


def _by_parts(builder: relax.BlockBuilder, data: Any, groups: Groups, attributes: Normalization) -> relax.Expr | None:
    """Return the normalization by statistics of parts of images; None if no block has a whole group."""
    batch, *inner = extents_of(data) or ()
    places, channels = math.prod(groups.places), groups.number * groups.each
    parts = parts_of(batch, places, channels, groups.each, str(data.ty.dtype))
    if parts is None:
        return None
    flat = data if len(inner) == 2 else builder.emit(relax.op.reshape(data, [batch, places, channels]))
    statistics = group_statistics(builder, flat, parts, attributes.epsilon, centered=attributes.centered)

    def compute(image: te.Tensor, found: te.Tensor) -> te.Tensor:
        def element(n: Any, *at: Any) -> Any:
            group = at[-1] // groups.each
            return (image(n, *at).astype(FULL) - found(n, group, 0)) * found(n, group, 1)

        return te.compute(image.shape, element, name="normalized")

    return builder.call_te(compute, data, statistics, primfunc_name_hint="normalize")


@dataclass(frozen=True)
class Groups:
    """How groups lie in an image of extents ``places``: ``number`` groups of ``each`` channels, which are ``last``."""

    places: tuple[int, ...]
    number: int
    each: int
    last: bool

    @property
    def length(self) -> int:
        """The elements of a group."""
        return math.prod(self.places) * self.each

    def source(self, group: Any, element: Any) -> tuple[Any, ...]:
        """Return the index in an image of an element of a group, in the order in which they lie in memory."""
        whole = math.prod(self.places)
        inner = self.each if self.last else whole
        place, channel = (element // inner, element % inner) if self.last else (element % inner, element // inner)
        at, channel = unravel_index(place, self.places), group * self.each + channel
        return (*at, channel) if self.last else (channel, *at)

    def element(self, *index: Any) -> tuple[Any, Any]:
        """Return the group of an element of an image, and which of its elements that is."""
        (*at, channel) = index if self.last else (*index[1:], index[0])
        place, inner = ravel_index(at, self.places), channel % self.each
        whole = math.prod(self.places)
        return channel // self.each, place * self.each + inner if self.last else inner * whole + place


def groups_of(data: Any, attributes: Normalization) -> Groups | None:
    """Return the groups of several channels of a normalization of whole images; None for others."""
    shape, channel = shape_of(data), attributes.channel_axis
    if shape is None or channel is None or len(shape) < 3 or channel not in (1, len(shape) - 1):
        return None
    places = shape[2:] if channel == 1 else shape[1:-1]
    axes = tuple(range(2, len(shape)) if channel == 1 else range(1, len(shape) - 1))
    known = all(isinstance(extent, int) for extent in shape[1:])
    if attributes.axes != axes or not known or attributes.groups == shape[channel]:
        return None
    return Groups(places, attributes.groups, shape[channel] // attributes.groups, last=channel > 1)


def _normalized(groups: Groups, attributes: Normalization, image: te.Tensor) -> te.Tensor:
    """Normalize an image: rows are a copy of it by groups, for the schedule to hold."""
    batch, length = image.shape[0], tirx.const(groups.length, FULL)
    rows = te.compute(
        (batch, groups.number, groups.length),
        lambda n, group, element: image(n, *groups.source(group, element)),
        name="group_rows",
    )

    means: list[te.Tensor] = []

    def distance(n: Any, group: Any, element: Any) -> Any:
        value = rows(n, group, element).astype(FULL)
        return value - means[0](n, group) if means else value

    def mean(term: Callable[..., Any]) -> te.Tensor:
        element = te.reduce_axis((0, groups.length), name="element")
        total = te.compute(
            (batch, groups.number),
            lambda n, group: te.sum(term(n, group, element), axis=element),
            name="group_sum",
        )
        return te.compute(total.shape, lambda *at: total(*at) / length, name="group_mean")

    if attributes.centered:
        means.append(mean(distance))
    variance = mean(lambda *at: distance(*at) * distance(*at))

    def normalized(n: Any, *index: Any) -> Any:
        group, element = groups.element(*index)
        scale = tirx.rsqrt(variance(n, group) + tirx.const(attributes.epsilon, FULL))
        return distance(n, group, element) * scale

    return te.compute(image.shape, normalized, name="normalized")

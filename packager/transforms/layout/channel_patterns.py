"""Matches what models write with reshapes and transposes: rearrangements of channels, means over neighboring ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, shape_of
from packager.transforms.layout.layouts import LAST, to_last

VIEWS = ("reshape", "expand_dims", "squeeze")


@dataclass(frozen=True)
class Rearrangement:
    """Axes split, permuted and merged: depth to space, space to depth, channel shuffles. Channels are last.

    ``parts`` are the extents of ``source`` after the split, ``axes`` their permutation, ``whole`` the result's extents.
    """

    source: Any
    parts: tuple[Any, ...]
    axes: tuple[int, ...]
    whole: tuple[Any, ...]

    @property
    def moves(self) -> bool:
        """Whether elements change their order with channels last."""
        return list(self.axes) != sorted(self.axes)


def find_rearrangement(call: relax.Call, flow: Dataflow) -> Rearrangement | None:
    """Match the last reshape of a rearrangement of NC...: a reshape that splits axes, a transpose, and this one.

    A reshape alone, that leaves batch and channels, is one too.
    """
    whole = shape_of(call) or ()
    swap = flow.call(call.args[0], "permute_dims")
    split = flow.call(swap.args[0], "reshape") if swap is not None else None
    if split is None:
        image = shape_of(call.args[0]) or ()
        kept = len(image) in LAST and len(whole) in LAST and same(image[:2], whole[:2])
        after = _last(whole)
        return Rearrangement(call.args[0], after, tuple(range(len(after))), after) if kept else None
    parts, axes, image = shape_of(split) or (), axes_of(swap) or (), shape_of(split.args[0]) or ()
    if len(image) not in LAST or len(whole) not in LAST:
        return None
    before, merged = _groups(parts, image), _groups([parts[axis] for axis in axes], whole)
    if before is None or merged is None:
        return None
    # Axes of extent 1 belong to any group: without them it shows what stays in order.
    long = {axis for group in before for axis in _without_units(group, parts)}
    order = [axis for group in _last(before) for axis in group if axis in long]
    moved = [axes[axis] for group in _last(merged) for axis in group if axes[axis] in long]
    permutation = tuple(order.index(axis) for axis in moved)
    return Rearrangement(split.args[0], tuple(parts[axis] for axis in order), permutation, _last(whole))


def _last(axes: Sequence[Any]) -> tuple[Any, ...]:
    """Return what belongs to the axes of NC... in the order of N...C."""
    return tuple(axes[axis] for axis in to_last(len(axes)))


def _groups(parts: Sequence[Any], whole: Sequence[Any]) -> list[list[int]] | None:
    """Return the axes of ``parts`` that each axis of ``whole`` is split into; None if it is not split so."""
    groups: list[list[int]] = []
    axis = 0
    for extent in whole:
        group: list[int] = []
        product: Any = 1
        while axis < len(parts) and (not group or not same(product, extent)):
            group.append(axis)
            product = product * parts[axis]
            axis += 1
        if not same(product, extent):
            return None
        groups.append(group)
    if any(extent != 1 for extent in parts[axis:]):
        return None
    groups[-1] += range(axis, len(parts))
    return groups


def _without_units(group: Sequence[int], parts: Sequence[Any]) -> Sequence[int]:
    """Return the axes of a group without those of extent 1, but at least one."""
    return [axis for axis in group if not (isinstance(parts[axis], int) and parts[axis] == 1)] or group[:1]


def find_flattened(call: Any, flow: Dataflow) -> Any | None:
    """Match NCHW -> [N, C, H * W] -> transpose to [N, H * W, C]; return the NCHW image, or None."""
    if axes_of(call) != (0, 2, 1):
        return None
    flat = flow.call(call.args[0], "reshape")
    image, rows = (shape_of(flat.args[0]), shape_of(flat)) if flat is not None else (None, None)
    if not image or not rows or len(image) != 4:
        return None
    return flat.args[0] if same((*image[:2], image[2] * image[3]), rows) else None


def find_unflattened(call: Any, flow: Dataflow) -> Any | None:
    """Match [N, H * W, C] -> transpose to [N, C, H * W] -> [N, C, H, W]; return the first, or None."""
    flat = flow.call(call.args[0], "permute_dims") if operator_of(call) == "reshape" else None
    if flat is None or list(map(int, flat.attrs.axes or ())) != [0, 2, 1]:
        return None
    rows, image = shape_of(flat), shape_of(call)
    if not rows or not image or len(image) < 4:
        return None
    return flat.args[0] if same(rows[:2], image[:2]) else None


@dataclass(frozen=True)
class NeighborMean:
    """A mean over ``window`` adjacent channels; ``whole`` is NHWC."""

    source: Any
    window: int
    padding: tuple[int, int]
    counts_padding: bool
    whole: tuple[Any, ...]


def find_mean_of_neighbors(call: relax.Call, flow: Dataflow) -> NeighborMean | None:
    """Match the last reshape of such a mean, which frontends write as a 3-D pooling of [N, 1, C, H, W]."""
    pool = flow.call(call.args[0], "nn.avg_pool3d")
    seen = flow.call(pool.args[0], *VIEWS) if pool is not None else None
    if pool is None or seen is None:
        return None
    attrs, source = pool.attrs, _names(seen.args[0])
    window, padding = list(map(int, attrs.pool_size)), list(map(int, attrs.padding))
    ones = [*map(int, attrs.strides), *map(int, attrs.dilation), *window[1:]]
    plain = set(ones) == {1} and not any((*padding[1:3], *padding[4:])) and attrs.layout == "NCDHW"
    if not plain or not source or _names(seen) != [source[0], "1", *source[1:]] or _names(call) != source:
        return None
    batch, channels, height, width = call.ty.shape.values
    whole = (batch, height, width, channels)
    return NeighborMean(seen.args[0], window[0], (padding[0], padding[3]), bool(attrs.count_include_pad), whole)


def _names(value: Any) -> Sequence[str]:
    """Return the extents of a tensor as strings, for comparison; empty if unknown."""
    return [str(extent) for extent in shape_of(value) or ()]

"""Matches channel shuffles, and means over neighboring channels (LRN), written with reshapes and transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, same, shape_of

VIEWS = ("reshape", "expand_dims", "squeeze")


@dataclass(frozen=True)
class Shuffle:
    """A channel shuffle. ``parts`` are [N, H, W, groups, channels], ``whole`` is NHWC."""

    source: Any
    parts: tuple[Any, ...]
    whole: tuple[Any, ...]


def find_shuffle(call: relax.Call, flow: Dataflow) -> Shuffle | None:
    """Match the last reshape of a shuffle.

    The model reshapes to [N, groups, C, H, W], swaps groups and C, and reshapes to [N, C * groups, H, W].
    """
    swap = flow.call(call.args[0], "permute_dims")
    split = flow.call(swap.args[0], "reshape") if swap is not None else None
    if split is None or swap.attrs.axes is None:
        return None
    source, parts, whole = _names(split.args[0]), _names(split), _names(call)
    views = source and [parts[0], *parts[3:]] == [source[0], *source[2:]] and whole == source
    if not views or len(parts) != 5 or list(map(int, swap.attrs.axes)) != [0, 2, 1, 3, 4]:
        return None
    groups, inner = split.ty.shape.values[1:3]
    batch, channels, height, width = call.ty.shape.values
    return Shuffle(split.args[0], (batch, height, width, groups, inner), (batch, height, width, channels))


def find_flattened(call: Any, flow: Dataflow) -> Any | None:
    """Match NCHW -> [N, C, H * W] -> transpose to [N, H * W, C]; return the NCHW image, or None."""
    is_transpose = operator_of(call) == "permute_dims" and call.attrs.axes is not None
    if not is_transpose or list(map(int, call.attrs.axes)) != [0, 2, 1]:
        return None
    flat = flow.call(call.args[0], "reshape")
    image, rows = (shape_of(flat.args[0]), shape_of(flat)) if flat is not None else (None, None)
    if not image or not rows or len(image) != 4:
        return None
    return flat.args[0] if same((*image[:2], image[2] * image[3]), rows) else None


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

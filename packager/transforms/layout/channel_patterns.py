"""Matches channel shuffles, and means over neighboring channels (LRN), written with reshapes and transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.graph.dataflow import same, shape_of

VIEWS = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
# made_by(operand, *names): the call that computes an operand, if it is of one of these operators.
MadeBy = Callable[..., Any]


@dataclass(frozen=True)
class Shuffle:
    """A channel shuffle. ``parts`` are [N, H, W, groups, channels], ``whole`` is NHWC."""

    source: Any
    parts: tuple[Any, ...]
    whole: tuple[Any, ...]


def find_shuffle(call: relax.Call, made_by: MadeBy) -> Shuffle | None:
    """Match the last reshape of a shuffle.

    The model reshapes to [N, groups, C, H, W], swaps groups and C, and reshapes to [N, C * groups, H, W].
    """
    swap = made_by(call.args[0], "relax.permute_dims")
    split = made_by(swap.args[0], "relax.reshape") if swap is not None else None
    if split is None or swap.attrs.axes is None:
        return None
    source, parts, whole = _names(split.args[0]), _names(split), _names(call)
    views = source and [parts[0], *parts[3:]] == [source[0], *source[2:]] and whole == source
    if not views or len(parts) != 5 or list(map(int, swap.attrs.axes)) != [0, 2, 1, 3, 4]:
        return None
    groups, inner = split.ty.shape.values[1:3]
    batch, channels, height, width = call.ty.shape.values
    return Shuffle(split.args[0], (batch, height, width, groups, inner), (batch, height, width, channels))


def find_flattened(call: relax.Call, made_by: MadeBy) -> Any | None:
    """Match NCHW -> [N, C, H * W] -> transpose to [N, H * W, C]; return the NCHW image, or None."""
    is_transpose = getattr(call.op, "name", "") == "relax.permute_dims" and call.attrs.axes is not None
    if not is_transpose or list(map(int, call.attrs.axes)) != [0, 2, 1]:
        return None
    flat = made_by(call.args[0], "relax.reshape")
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


def find_mean_of_neighbors(call: relax.Call, made_by: MadeBy) -> NeighborMean | None:
    """Match the last reshape of such a mean, which frontends write as a 3-D pooling of [N, 1, C, H, W]."""
    pool = made_by(call.args[0], "relax.nn.avg_pool3d")
    seen = made_by(pool.args[0], *VIEWS) if pool is not None else None
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

"""The patterns of pooling, as operators of pooling and as means."""

from __future__ import annotations

from tvm.relax.dpl import is_op, wildcard

from packager.backends.base import Match, Pattern
from packager.backends.ccompiler.core.checks import NUMBERS, anchor, dtypes_of, has_channels, is_static
from packager.backends.ccompiler.core.problems import FLOATS, MOST_ELEMENTS, MOST_NEIGHBORS
from packager.graph.dataflow import operator_of, shape_of

# Ranks of tensors of lines, planes and volumes.
RANKS = (3, 4, 5)
# Poolings along channels that are last. An average along lines is that of neighbors, below.
LAYOUTS = {
    "max_pool2d": "NHWC",
    "avg_pool2d": "NHWC",
    "max_pool1d": "NWC",
    "max_pool3d": "NDHWC",
    "avg_pool3d": "NDHWC",
}


def pool_patterns() -> list[Pattern]:
    pools = [anchor(name, is_op(f"relax.nn.{name}")(wildcard()), _is_pool) for name in LAYOUTS]
    adaptive = is_op("relax.nn.adaptive_avg_pool2d")(wildcard())
    rows = is_op("relax.reshape")(wildcard(), wildcard())
    return [
        *pools,
        anchor("avg_pool1d", is_op("relax.nn.avg_pool1d")(rows), _is_mean_of_neighbors),
        anchor("avg_pool2d", adaptive, _is_global_pool),
        anchor("avg_pool2d", is_op("relax.mean")(wildcard()), _is_spatial_mean),
    ]


def _is_mean_of_neighbors(match: Match) -> bool:
    """Whether it is along rows, and the padding is counted."""
    call = match.calls[-1]
    attrs, shape = call.attrs, shape_of(call)
    plain = attrs.layout == "NCW" and int(attrs.strides[0]) == 1 and int(attrs.dilation[0]) == 1
    if shape is None or str(shape) != str(shape_of(call.args[0])) or not is_static(shape[1:]) or shape[1] != 1:
        return False
    if shape[-1] > MOST_ELEMENTS or int(attrs.pool_size[0]) > MOST_NEIGHBORS:
        return False
    counted = attrs.count_include_pad or not any(map(int, attrs.padding))
    return bool(plain and counted and dtypes_of(call) == {"float32"})


def _is_pool(match: Match) -> bool:
    (call,) = match.calls
    attrs, name = call.attrs, operator_of(call).removeprefix("nn.")
    last = attrs.layout == LAYOUTS[name] and attrs.out_layout in ("", LAYOUTS[name])
    taken = {*NUMBERS, "uint8"} if name.startswith("max") else set(NUMBERS)
    return last and shape_of(call) is not None and has_channels(shape_of(call.args[0])) and dtypes_of(call) <= taken


def _is_global_pool(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call) or ()
    return shape[1:3] == (1, 1) and call.attrs.layout == "NHWC" and has_channels(shape) and dtypes_of(call) <= {*FLOATS}


def _is_spatial_mean(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call.args[0])
    rank = len(shape or ())
    axes = sorted(int(axis) % rank for axis in call.attrs.axis or ()) if rank in RANKS else []
    return has_channels(shape) and rank in RANKS and axes == [*range(1, rank - 1)] and dtypes_of(call) <= set(FLOATS)

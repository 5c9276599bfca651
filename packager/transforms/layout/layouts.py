"""Axes and names of the layouts with channels last: NWC, NHWC, NDHWC."""

from __future__ import annotations

from typing import Any

from tvm import relax

from packager.graph.dataflow import shape_of

# Layouts of data and filters by rank: channels first, then last.
FIRST = {3: ("NCW", "OIW"), 4: ("NCHW", "OIHW"), 5: ("NCDHW", "OIDHW")}
LAST = {3: ("NWC", "OWI"), 4: ("NHWC", "OHWI"), 5: ("NDHWC", "ODHWI")}
# Operators that have no layout: whatever that of their operands is, it is that of their result.
CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
ELEMENTWISE = frozenset(
    (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "exp", "log", "sqrt"),
        *("rsqrt", "abs", "negative", "square", "erf", "clip", "astype"),
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    )
)


def to_last(rank: int) -> list[int]:
    """Return the permutation from NC... to N...C."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """Return the permutation from N...C to NC..."""
    return [0, rank - 1, *range(1, rank - 1)]


def last_axis(axis: int, rank: int) -> int:
    """Return the axis of N...C for an axis of NC..., which may count from the end."""
    return to_first(rank)[axis % rank]


def permuted(data: Any, axes: list[int]) -> Any:
    """Permute a tensor to the other layout; a reshape if it has one channel or one pixel."""
    shape = shape_of(data)
    if shape is not None:
        rank = len(shape)
        extents = [shape[axis] for axis in axes]
        channels = rank - 1 if axes == to_last(rank) else 1
        places = [axis for axis in range(1, rank) if axis != channels]
        for ones in ([channels], places):
            if all(isinstance(extents[axis], int) and extents[axis] == 1 for axis in ones):
                return relax.op.reshape(data, extents)
    return relax.op.permute_dims(data, axes)

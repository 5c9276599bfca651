"""Lowers 3-D convolutions with few input channels to ones whose channels are rows of the window along the width.

im2col writes each element once for every window that it is in: of a window of 3 x 7 x 7 that is 37 times where it moves
by two. Rows are written once for every seven columns, and kernels that read windows by TMA gather the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.identity import IdentitySet
from packager.transforms.layout.layouts import LAST, to_last
from packager.transforms.layout.windows.im2col import Im2Col, find_im2col, known_extents

# Channels and filters of half precision that TMA reads, and how far the corners of windows may be from an element.
VECTOR = 8
LARGEST_REACH = 15
# Windows of fewer rows are gathered as a whole, and those that overlap so little that im2col writes fewer than so many
# times the elements, such as the patches of a video transformer.
LEAST_ROWS, WORTH = 4, 2


@dataclass(frozen=True)
class RowWindows:
    """What gathers rows of windows along the width, which are channels then; the convolution is of ``filters``."""

    rows: Im2Col
    window: tuple[int, ...]

    def convolve(self, builder: relax.BlockBuilder, call: relax.Call, data: Any, weight: Any) -> relax.Call:
        """Return the convolution with channels last."""
        rows, attrs = self.rows, call.attrs
        gathered = builder.emit_te(rows.gather, data, primfunc_name_hint="gather_windows")
        matrix = self._weights(builder, weight)
        strides, dilation, padding = (list(map(int, v)) for v in (attrs.strides, attrs.dilation, attrs.padding))
        layout, kernel_layout = LAST[5]
        return relax.op.nn.conv3d(
            gathered,
            matrix,
            [*strides[:2], 1],
            [*padding[:2], 0, *padding[3:5], 0],
            [*dilation[:2], 1],
            data_layout=layout,
            kernel_layout=kernel_layout,
            out_layout=layout,
            out_dtype=attrs.out_dtype,
        )

    def _weights(self, builder: relax.BlockBuilder, weight: Any) -> Any:
        """Return the filters, [filters, channels, ...], with rows of their windows as channels, which are last."""
        rows, (depth, height, _) = self.rows, self.window
        axes = to_last(5) if rows.last else [0, 2, 3, 1, 4]
        parts = [rows.filters, depth, height, rows.pieces, rows.own]
        pieces = builder.emit(relax.op.reshape(builder.emit(relax.op.permute_dims(weight, axes)), parts))
        if rows.piece > rows.own:
            pieces = builder.emit(relax.op.nn.pad(pieces, [0] * 9 + [rows.piece - rows.own]))
        row = rows.pieces * rows.piece
        whole = builder.emit(relax.op.reshape(pieces, [rows.filters, depth, height, 1, row]))
        return builder.emit(relax.op.nn.pad(whole, [0] * 9 + [rows.length - row])) if rows.length > row else whole


def find_row_windows(call: relax.Call, constants: IdentitySet, *, last: bool) -> RowWindows | None:
    """Return how a convolution of volumes with channels first is one of rows, or None if it is better as it is.

    ``constants`` and ``last`` are as in ``find_im2col``.
    """
    extents = known_extents(call, constants)
    if extents is None:
        return None
    dtype, _, filters, result = extents
    window = tuple(map(int, filters[2:]))
    if dtype not in HALVES or filters[0] % VECTOR or window[0] * window[1] < LEAST_ROWS:
        return None
    rows = find_im2col(call, constants, last=last, width_only=True)
    if rows is None or not is_within_reach(call, window[:-1]):
        return None
    whole = math.prod(result[2:]) * window[0] * window[1] * rows.length
    return RowWindows(rows, window) if whole >= WORTH * math.prod(rows.result) * rows.length else None


def is_within_reach(call: relax.Call, window: tuple[int, ...]) -> bool:
    """Whether TMA can read windows of a convolution, of the first axes of the three."""
    axes, attrs = len(window), call.attrs
    padding, stride, dilation = (tuple(map(int, v)) for v in (attrs.padding, attrs.strides, attrs.dilation))
    reach = [(extent - 1) * step for extent, step in zip(window, dilation, strict=False)]
    return max(*padding[:axes], *padding[3 : 3 + axes], *reach) <= LARGEST_REACH and max(stride[:axes]) <= VECTOR

"""Lowers convolutions with few input channels to im2col + matmul.

The reduction of such a convolution runs over many short contiguous pieces, which convolution kernels would read element
by element. Gathering them first gives rows that can be read by vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from packager.graph.dataflow import shape_of
from packager.graph.identity import IdentitySet
from packager.transforms.layout.layouts import to_last

# Convolutions with at least this many channels already read (nearly) whole vectors.
MANY_CHANNELS = 16
# Maximum factors by which zero padding may lengthen a row: in each piece, and at its end alone.
MOST_FILLED = 1.3
MOST_AT_END = 2.0
VECTOR_BYTES = 16
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Im2Col:
    """The im2col layout: a window of the convolution per row of ``length`` elements.

    Tuples are of the spatial axes, the width last.

    A row consists of pieces, each contiguous in the image: the columns of one channel, or with channels ``last`` the
    columns with all channels. A piece has ``own`` elements, zero-padded to ``piece``; the row is zero-padded to
    ``length``.
    """

    last: bool
    channels: int
    filters: int
    image: tuple[int, ...]
    result: tuple[int, ...]
    window: tuple[int, ...]
    before: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pieces: int
    own: int
    piece: int
    length: int

    def convolve(self, builder: relax.BlockBuilder, _call: relax.Call, data: Any, weight: Any) -> relax.Call:
        """Return the convolution with channels last, as a product."""
        rows = builder.emit_te(self.gather, data, primfunc_name_hint="gather_windows")
        return relax.op.matmul(rows, self.matrix(builder, weight))

    def gather(self, data: Any) -> Any:
        """Return the im2col tensor [batch, ``result``, length] in TE.

        Padding loads the nearest pixel and masks its bits: unconditional loads can be in flight together.
        """
        axes = range(len(self.window))

        def load(image: Any, channel: Any, places: Sequence[Any]) -> Any:
            return data[image, *places, channel] if self.last else data[image, channel, *places]

        def element(image: Any, *indices: Any) -> Any:
            *firsts, k = indices
            piece, place = k // self.piece, k % self.piece
            channel, steps = self._element(piece, place)
            places = [firsts[i] * self.stride[i] + steps[i] * self.dilation[i] - self.before[i] for i in axes]
            inside = [k < self.pieces * self.piece] * (self.length > self.pieces * self.piece)
            inside += [place < self.own] * (self.piece > self.own)
            if not inside and not any(map(self._leaves, axes)):
                return load(image, channel, places)
            for axis in axes:
                inside += [places[axis] >= 0, places[axis] < self.image[axis]] * self._leaves(axis)
            *places, channel = (
                tirx.max(0, tirx.min(index, extent - 1))
                for index, extent in zip((*places, channel), (*self.image, self.channels), strict=True)
            )
            return masked(load(image, channel, places), inside)

        return te.compute((data.shape[0], *self.result, self.length), element, name="windows")

    def _element(self, piece: Any, place: Any) -> tuple[Any, list[Any]]:
        """Return the channel and the place in the window of an element of a piece."""
        channel, step = (place % self.channels, place // self.channels) if self.last else (None, place)
        steps = [step]
        for extent in reversed(self.window[1:-1]):
            steps.insert(0, piece % extent)
            piece = piece // extent
        if channel is not None:
            return channel, [piece, *steps]
        return piece // self.window[0], [piece % self.window[0], *steps]

    def _leaves(self, axis: int) -> bool:
        """Whether windows exceed the image along an axis."""
        furthest = (self.result[axis] - 1) * self.stride[axis] + (self.window[axis] - 1) * self.dilation[axis]
        return self.before[axis] > 0 or furthest - self.before[axis] >= self.image[axis]

    def matrix(self, builder: relax.BlockBuilder, weight: Any) -> Any:
        """Return the filters, [filters, channels, ...], as a matrix [length, filters], with rows in im2col order."""
        if self.last:
            weight = builder.emit(relax.op.permute_dims(weight, to_last(2 + len(self.window))))
        if self.piece > self.own:
            weight = builder.emit(relax.op.reshape(weight, (self.filters, self.pieces, self.own)))
            weight = builder.emit(relax.op.nn.pad(weight, (0, 0, 0, 0, 0, self.piece - self.own)))
        weight = builder.emit(relax.op.reshape(weight, (self.filters, self.pieces * self.piece)))
        if self.length > self.pieces * self.piece:
            weight = builder.emit(relax.op.nn.pad(weight, (0, 0, 0, self.length - self.pieces * self.piece)))
        return builder.emit(relax.op.permute_dims(weight))


def find_im2col(call: relax.Call, constants: IdentitySet, *, last: bool, width_only: bool = False) -> Im2Col | None:
    """Return the im2col layout of a convolution with channels first, or None if im2col is not profitable.

    ``constants`` are variables that depend on no input, among which the filters must be; ``last``: the data is
    available with channels last. With ``width_only`` rows are those of windows along the width, at all other places.
    """
    attrs, extents = call.attrs, known_extents(call, constants)
    if extents is None:
        return None
    dtype, image, filters, result = extents
    full, channels, axes = VECTOR_BYTES // ITEMSIZE[dtype], image[1], len(image) - 2
    if channels >= MANY_CHANNELS or channels % full == 0 or filters[0] % full:
        return None
    window, found, before, stride, dilation = (
        tuple(map(int, axis)) for axis in (filters[2:], result[2:], attrs.padding[:axes], attrs.strides, attrs.dilation)
    )
    if width_only:
        ones, zeros = (1,) * (axes - 1), (0,) * (axes - 1)
        window, before = (*ones, window[-1]), (*zeros, before[-1])
        stride, dilation = (*ones, stride[-1]), (*ones, dilation[-1])
        found = (*image[2:-1], found[-1])
    lines, width = math.prod(window[:-1]), window[-1]
    pieces, own = (lines, width * channels) if last else (channels * lines, width)
    lengths = {piece: _filled(pieces * piece, full) for piece in (_filled(own, full), own)}
    limits = {piece: pieces * own * (MOST_AT_END if piece == own else MOST_FILLED) for piece in lengths}
    fitting = [(piece, length) for piece, length in lengths.items() if length <= limits[piece]]
    if not fitting:
        return None
    piece, length = fitting[0]
    sizes = (tuple(image[2:]), found, window, before, stride, dilation)
    return Im2Col(last, channels, filters[0], *sizes, pieces, own, piece, length)


def known_extents(call: relax.Call, constants: IdentitySet) -> tuple[str, Any, Any, Any] | None:
    """Return the type of an ungrouped convolution, and the shapes of its image, filters and result.

    Returns None if these are not of one type, the filters not constant, or extents but the batch symbolic.
    """
    data, weight = call.args
    image, filters, result = shape_of(data), shape_of(weight), shape_of(call)
    types = {str(value.ty.dtype) for value in (data, weight, call)}
    if not image or not filters or not result or len(types) != 1 or weight not in constants:
        return None
    (dtype,) = types
    known = all(isinstance(extent, int) and extent > 0 for extent in (*image[1:], *filters, *result[1:]))
    return (dtype, image, filters, result) if dtype in ITEMSIZE and call.attrs.groups == 1 and known else None


def masked(value: Any, conditions: list[Any]) -> Any:
    """Return a value, or zero if a condition is false."""
    bits = f"uint{8 * ITEMSIZE[str(value.dtype)]}"
    mask = tirx.Select(tirx.all(*conditions), tirx.max_value(bits), tirx.const(0, bits))
    return tirx.reinterpret(value.dtype, tirx.bitwise_and(tirx.reinterpret(bits, value), mask))


def _filled(extent: int, full: int) -> int:
    return -(-extent // full) * full

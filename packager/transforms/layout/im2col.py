"""Convolutions of few channels as matrix products: rows that hold a window each, times the filters.

What such a convolution adds up for one place of its result lies in many short pieces, and kernels for convolutions read
these one element at a time. One kernel gathers them first; the rows of its result are whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from packager.graph.dataflow import shape_of
from packager.graph.identity import IdentitySet

# Convolutions of as many channels read whole vectors by themselves, or nearly so.
MANY_CHANNELS = 16
# How many times longer zeros may make a row.
MOST_FILLED = 1.3
VECTOR_BYTES = 16
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Windows:
    """How the windows of a convolution lie in rows of ``length`` elements; pairs are of height and width.

    A row is made of pieces, each what lies in one line of the image: of NCHW the columns of one channel, of NHWC
    (``last``) the columns with all their channels. Behind the ``own`` elements of a piece zeros fill it up to
    ``piece``, and more of them the row up to ``length``.
    """

    last: bool
    channels: int
    filters: int
    image: tuple[int, int]
    result: tuple[int, int]
    window: tuple[int, int]
    before: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pieces: int
    own: int
    piece: int
    length: int

    def gather(self, data: Any) -> Any:
        """Return the rows, [batch, height, width, length] of the result, as a TE tensor.

        Zeros are masked bits of what lies nearest in the image: a load that depends on no condition waits for no other.
        """
        top, left = self.before

        def element(image: Any, row: Any, column: Any, k: Any) -> Any:
            piece, place = k // self.piece, k % self.piece
            if self.last:
                channel, line, step = place % self.channels, piece, place // self.channels
            else:
                channel, line, step = piece // self.window[0], piece % self.window[0], place
            y = row * self.stride[0] + line * self.dilation[0] - top
            x = column * self.stride[1] + step * self.dilation[1] - left
            inside = [k < self.pieces * self.piece] * (self.length > self.pieces * self.piece)
            inside += [place < self.own] * (self.piece > self.own)
            if not inside and not any(self._leaves(axis) for axis in (0, 1)):
                return data[image, y, x, channel] if self.last else data[image, channel, y, x]
            inside += [y >= 0, y < self.image[0]] * self._leaves(0) + [x >= 0, x < self.image[1]] * self._leaves(1)
            y, x, channel = (
                tirx.max(0, tirx.min(index, extent - 1))
                for index, extent in zip((y, x, channel), (*self.image, self.channels), strict=True)
            )
            return _masked(data[image, y, x, channel] if self.last else data[image, channel, y, x], inside)

        return te.compute((data.shape[0], *self.result, self.length), element, name="windows")

    def _leaves(self, axis: int) -> bool:
        """Whether a window is not all in the image along an axis: the height, 0, or the width."""
        furthest = (self.result[axis] - 1) * self.stride[axis] + (self.window[axis] - 1) * self.dilation[axis]
        return self.before[axis] > 0 or furthest - self.before[axis] >= self.image[axis]

    def matrix(self, builder: relax.BlockBuilder, weight: Any) -> Any:
        """Return the filters, OIHW, as a matrix [length, filters] whose rows are in the order of the windows'."""
        if self.last:
            weight = builder.emit(relax.op.permute_dims(weight, [0, 2, 3, 1]))
        if self.piece > self.own:
            weight = builder.emit(relax.op.reshape(weight, (self.filters, self.pieces, self.own)))
            weight = builder.emit(relax.op.nn.pad(weight, (0, 0, 0, 0, 0, self.piece - self.own)))
        weight = builder.emit(relax.op.reshape(weight, (self.filters, self.pieces * self.piece)))
        if self.length > self.pieces * self.piece:
            weight = builder.emit(relax.op.nn.pad(weight, (0, 0, 0, self.length - self.pieces * self.piece)))
        return builder.emit(relax.op.permute_dims(weight))


def find_windows(call: relax.Call, constants: IdentitySet, *, last: bool) -> Windows | None:
    """Return the windows of a convolution of NCHW by OIHW that is better computed as a product, else None.

    ``constants`` is what depends on no input, which the filters are; ``last`` says that its data is
    there as NHWC.
    """
    data, weight = call.args
    attrs, image, filters, result = call.attrs, shape_of(data), shape_of(weight), shape_of(call)
    types = {str(value.ty.dtype) for value in (data, weight, call)}
    if not image or not filters or not result or len(types) != 1 or weight not in constants:
        return None
    (dtype,) = types
    extents = (*image[1:], *filters, *result[1:])
    known = all(isinstance(extent, int) and extent > 0 for extent in extents)
    if dtype not in ITEMSIZE or attrs.groups != 1 or not known:
        return None
    full, channels, (height, width) = VECTOR_BYTES // ITEMSIZE[dtype], image[1], filters[2:]
    if channels >= MANY_CHANNELS or channels % full == 0 or filters[0] % full:
        return None
    pieces, own = (height, width * channels) if last else (channels * height, width)
    lengths = {piece: _filled(pieces * piece, full) for piece in (_filled(own, full), own)}
    fitting = [(piece, length) for piece, length in lengths.items() if length <= MOST_FILLED * pieces * own]
    if not fitting:
        return None
    piece, length = fitting[0]
    return Windows(
        last,
        channels,
        filters[0],
        (image[2], image[3]),
        (result[2], result[3]),
        (height, width),
        (int(attrs.padding[0]), int(attrs.padding[1])),
        (int(attrs.strides[0]), int(attrs.strides[1])),
        (int(attrs.dilation[0]), int(attrs.dilation[1])),
        pieces,
        own,
        piece,
        length,
    )


def _masked(value: Any, conditions: list[Any]) -> Any:
    """Return a value, or zero where a condition is false."""
    bits = f"uint{8 * ITEMSIZE[str(value.dtype)]}"
    mask = tirx.Select(tirx.all(*conditions), tirx.max_value(bits), tirx.const(0, bits))
    return tirx.reinterpret(value.dtype, tirx.bitwise_and(tirx.reinterpret(bits, value), mask))


def _filled(extent: int, full: int) -> int:
    return -(-extent // full) * full

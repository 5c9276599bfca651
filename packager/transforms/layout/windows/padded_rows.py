"""Lowers convolutions with few input channels to ones of a padded image, of which a row of a window is one vector.

Kernels that read windows row by row need steps along the width that are vectors of 16 bytes. The image gets channels of
zeros for that, and its padding along the width: it is written once, where im2col would write each pixel once for every
window that it is in. What TMA loads costs by the number of such rows rather than by their length: where windows move
two rows at a time, two rows of the image become the channels of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from packager.graph.identity import IdentitySet
from packager.transforms.layout.windows.im2col import ITEMSIZE, MANY_CHANNELS, VECTOR_BYTES, known_extents, masked

# Channels of the padded image; the fewest that make steps vectors are chosen.
PIXELS = (2, 4, 8)
# The lengths of a row of the window, in elements: what kernels multiply in a step.
LENGTHS = (16, 32, 64)
# Writing an image is worth it where im2col would write more than this many times its elements.
WORTH = 1.25


@dataclass(frozen=True)
class PaddedRows:
    """A convolution of an image that is padded: [batch, height / ``fold``, ``width``, ``fold`` * ``pixel``].

    ``source`` and ``padding`` are (height, width) of the image, and the padding before its first row and column;
    ``last`` is whether it has its channels last. ``padded_window`` are the window's rows and columns with those of
    zeros, ``above`` of which are before the window's own rows. ``result`` is the height of the result.
    """

    last: bool
    channels: int
    source: tuple[int, int]
    padding: tuple[int, int]
    width: int
    pixel: int
    fold: int
    above: int
    padded_window: tuple[int, int]
    result: int

    @property
    def is_whole(self) -> bool:
        """Whether channels are whole vectors: only columns are added, to an image with channels last."""
        return self.fold == 1 and self.pixel == self.channels

    @property
    def reads_last(self) -> bool:
        """Whether the image that is padded has its channels last."""
        return self.last or self.is_whole

    def image(self, builder: relax.BlockBuilder, data: Any) -> Any:
        """Emit the padded image."""
        if not self.is_whole:
            return builder.emit_te(self.pad, data, primfunc_name_hint="pad_image")
        left, right = self.padding[1], self.width - self.source[1] - self.padding[1]
        return builder.emit(relax.op.nn.pad(data, [0, 0, 0, 0, left, right, 0, 0]) if left or right else data)

    def pad(self, data: Any) -> Any:
        """Return the padded image in TE; loads are masked as those of im2col."""
        height, width = self.source
        left = self.padding[1]

        def element(image: Any, line: Any, column: Any, place: Any) -> Any:
            channel, x = place % self.pixel, column - left
            row = line * self.fold + place // self.pixel
            inside = [channel < self.channels] * (self.pixel > self.channels)
            inside += [row < height] * (height % self.fold != 0)
            inside += [x >= 0] * (left > 0) + [x < width] * (self.width > width)
            row, channel = tirx.min(row, height - 1), tirx.min(channel, self.channels - 1)
            x = tirx.max(0, tirx.min(x, width - 1))
            value = data[image, row, x, channel] if self.last else data[image, channel, row, x]
            return masked(value, inside) if inside else value

        shape = (data.shape[0], -(-height // self.fold), self.width, self.fold * self.pixel)
        return te.compute(shape, element, name="padded")

    def convolve(self, builder: relax.BlockBuilder, call: relax.Call, image: Any, weight: Any) -> relax.Call:
        """Return the convolution of the padded ``image``; ``weight`` is that of ``call``, OIHW."""
        filters, _, *window = map(int, call.args[1].ty.shape.values)
        rows, columns = self.padded_window
        weight = builder.emit(relax.op.permute_dims(weight, [0, 2, 3, 1]))
        zeros = [self.above, rows - window[0] - self.above, 0, columns - window[1], 0, self.pixel - self.channels]
        if any(zeros):
            weight = builder.emit(relax.op.nn.pad(weight, [0, 0, *zeros]))
        if self.fold > 1:
            split = [filters, rows // self.fold, self.fold, columns, self.pixel]
            weight = builder.emit(relax.op.reshape(weight, split))
            weight = builder.emit(relax.op.permute_dims(weight, [0, 1, 3, 2, 4]))
            weight = builder.emit(
                relax.op.reshape(weight, [filters, rows // self.fold, columns, self.fold * self.pixel])
            )
        attrs = call.attrs
        vertical, horizontal = map(int, attrs.strides)
        top = (self.padding[0] + self.above) // self.fold
        needed = (self.result - 1) * vertical // self.fold + (rows // self.fold - 1) * int(attrs.dilation[0]) + 1
        bottom = max(0, needed - top - -(-self.source[0] // self.fold))
        return relax.op.nn.conv2d(
            image,
            weight,
            strides=[vertical // self.fold, horizontal],
            padding=[top, 0, bottom, 0],
            dilation=[int(attrs.dilation[0]), 1],
            data_layout="NHWC",
            kernel_layout="OHWI",
            out_layout="NHWC",
            out_dtype=attrs.out_dtype or None,
        )


def find_padded_rows(call: relax.Call, constants: IdentitySet, *, last: bool) -> PaddedRows | None:
    """Return how the image of an NCHW/OIHW convolution is padded, or None if that is not worth it.

    ``constants`` are variables that depend on no input, among which the filters must be; ``last``: the data is
    available in NHWC.
    """
    attrs, extents = call.attrs, known_extents(call, constants)
    if extents is None or int(attrs.dilation[1]) != 1:
        return None
    dtype, image, filters, result = extents
    if ITEMSIZE[dtype] != 2:
        return None
    full, channels, (rows, columns) = VECTOR_BYTES // 2, image[1], filters[2:]
    (down, across), padding = map(int, attrs.strides), (int(attrs.padding[0]), int(attrs.padding[1]))
    if channels == full:
        return _whole_vectors(image, filters, result, padding, (down, across), last=last)
    fold = 2 if down % 2 == 0 and int(attrs.dilation[0]) == 1 else 1
    fitting = [pixel for pixel in PIXELS if pixel >= channels and across * fold * pixel % full == 0]
    if channels >= MANY_CHANNELS or channels % full == 0 or filters[0] % full or not fitting:
        return None
    pixel = fitting[0]
    above = -padding[0] % fold
    length = next((length for length in LENGTHS if length >= columns * fold * pixel), 0)
    padded = (-(-(rows + above) // fold) * fold, length // (fold * pixel))
    width = (result[3] - 1) * across + padded[1]
    if not length or width * fold * pixel % full:
        return None
    if result[2] * result[3] * rows * columns * channels < WORTH * image[2] * width * pixel:
        return None
    source = (image[2], image[3])
    return PaddedRows(last, channels, source, padding, width, pixel, fold, above, padded, result[2])


def _whole_vectors(
    image: Any, filters: Any, result: Any, padding: tuple[int, int], strides: tuple[int, int], *, last: bool
) -> PaddedRows | None:
    """Return how an image with a vector of channels for each pixel is padded: only columns are added."""
    channels, (rows, columns) = image[1], filters[2:]
    length = next((length for length in LENGTHS if length >= columns * channels), 0)
    length = length or -(-columns * channels // LENGTHS[-1]) * LENGTHS[-1]
    width = (result[3] - 1) * strides[1] + length // channels
    if filters[0] % (VECTOR_BYTES // 2) or columns < 3 or width < image[3] + padding[1]:
        return None
    source, padded = (image[2], image[3]), (rows, length // channels)
    return PaddedRows(last, channels, source, padding, width, channels, 1, 0, padded, result[2])

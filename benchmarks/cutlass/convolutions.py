"""Convolutions as problems of the benchmarks fp16 and int8."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cutlass.forms import HALF, SIZES, Form, name_of


@dataclass(frozen=True)
class Conv:
    """A convolution of square images, NHWC, padded by half of the window; in fp16 with bias and ReLU."""

    batch: int
    size: int
    channels: int
    filters: int
    window: int
    stride: int
    form: Form = HALF
    family: str = ""
    groups: int = 1

    group = "conv"

    @property
    def name(self) -> str:
        """The name in files and options."""
        sizes = f"conv_b{self.batch}_{self.size}_{self.channels}_{self.filters}_{self.window}x{self.window}"
        more = (f"s{self.stride}" if self.stride > 1 else "") + (f"_g{self.groups}" if self.groups > 1 else "")
        return name_of(sizes + more, self.form, self.family)

    @property
    def padding(self) -> int:
        """Rows and columns of zeros on each side."""
        return self.window // 2

    @property
    def out_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def rows(self) -> int:
        """Elements of one channel of the result."""
        return self.batch * self.out_size**2

    @property
    def is_product(self) -> bool:
        """Whether packager takes it as a matrix product."""
        return self.window == self.stride == self.groups == 1

    @property
    def nbytes(self) -> int:
        """Bytes of operands and result."""
        weights = self.filters * self.window**2 * self.channels // self.groups
        operands = self.batch * self.size**2 * self.channels + weights
        return SIZES[self.form.dtype] * operands + SIZES[self.form.out] * self.rows * self.filters


@dataclass(frozen=True)
class Stem(Conv):
    """A convolution of few channels as packager takes it by rows: channels, image and window are padded with zeros.

    A step along the width and a row of the window are then whole vectors of 16 bytes.
    """

    group = "stem"

    @property
    def name(self) -> str:
        """The name in files and options."""
        return f"stem{super().name.removeprefix('conv')}"

    @property
    def fold(self) -> int:
        """Rows of the image that become the channels of one, as many as windows move at a time."""
        return 1 + (self.stride % 2 == 0 and self.channels % 8 > 0)

    @property
    def pixel(self) -> int:
        """Channels of the padded image, of each row."""
        return next(n for n in (2, 4, 8, 16, 32) if n >= self.channels and n * self.fold * self.stride % 8 == 0)

    @property
    def above(self) -> int:
        """Rows of zeros before the window's own."""
        return -self.padding % self.fold

    @property
    def padded_window(self) -> tuple[int, int]:
        """Rows, folded, and columns of the padded window, of which a row has a power of two of elements."""
        channels = self.fold * self.pixel
        length = next(n for n in (16, 32, 64, *range(128, 1024, 64)) if n >= self.window * channels)
        return -(-(self.window + self.above) // self.fold), length // channels

    @property
    def padded_width(self) -> int:
        """Columns of the padded image."""
        return (self.out_size - 1) * self.stride + self.padded_window[1]

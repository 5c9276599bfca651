"""Analytical cost model of convolutions: rank tiles without a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from packager.backends.cutlass.conv.groups import group_width, part_channels
from packager.backends.cutlass.conv.kernels import (
    FULL_STEP,
    LARGEST_PIXEL,
    VECTOR_BYTES,
    VOLUME_REACH,
    ConvConfig,
    group_portfolio,
    portfolio,
    row_portfolio,
    volume_portfolio,
)
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.element_types import ELEMENTS
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import (
    MARGIN,
    SM80_RATE,
    SM80_START,
    SM80_WAVE,
    GemmForm,
    GemmShape,
    ceil_div,
    estimate,
    fastest,
    multiplied,
)
from packager.backends.cutlass.gemm.kernels import SMS
from packager.backends.cutlass.gemm.tilings import Family, Sm80Tile, Sm90Tile, Tile

# As TIMES, per step of 128 bytes of channels of one element of the window. Fitted on an H200 to the convolutions of
# ResNet-50 of batch 1, 8 and 32, and to narrower and wider ones, of 16 to 1280 channels (benchmarks/cutlass/fp16.py,
# --trial): over 45 with windows the choice is 1.3 % slower than the best of 37 tiles (geometric mean; at most 23 %).
# Slices wait for others.
CONV_TIMES = {
    "64x64x64_c1x1_pingpong": (1.67, 0.450, 0.1616, 0.364),
    "128x64x64_c1x1_pingpong": (2.60, 0.400, 0.2000, 0.647),
    "128x16x64_c1x1_pingpong": (1.50, 0.500, 0.2700, 0.364),
    "64x32x64_c1x1_pingpong": (1.05, 0.500, 0.1400, 0.364),
    "128x32x64_c2x1_pingpong": (2.30, 0.700, 0.2700, 0.364),
    "128x96x64_c1x1_pingpong": (2.00, 1.500, 0.3900, 0.364),
    "64x80x64_c2x1_pingpong": (0.82, 1.754, 0.1646, 1.041),
    "64x128x64_c1x1_pingpong": (0.76, 1.618, 0.1934, 0.477),
    "64x128x64_c1x2_pingpong": (1.96, 0.948, 0.1785, 0.258),
    "128x128x64_c1x1_pingpong": (2.28, 1.388, 0.3072, 0.089),
    "64x160x64_c1x1_pingpong": (0.00, 4.034, 0.2022, 0.824),
    "128x160x64_c1x1_cooperative": (0.00, 3.927, 0.3787, 0.703),
    "128x192x64_c1x1_cooperative": (0.00, 4.468, 0.4219, 0.853),
    "64x64x64_w32x32_s8_k8": (0.15, 4.312, 0.3739, 0.916),
}
# As CONV_TIMES, of kernels by rows, whose steps take as long with fewer elements: fitted to first layers of ResNet, VGG
# and MobileNet of batch 1, 8 and 32; the choice is at most 4 % slower than the best.
ROW_TIMES = {
    "128x32x64_c2x1_pingpong": (2.2, 0.5, 0.12, 0.0),
    "128x64x64_c1x1_pingpong": (2.5, 1.0, 0.19, 0.0),
    "256x64x64_c2x1_cooperative": (2.5, 1.1, 0.46, 0.0),
}
# A step of half as many channels takes this part of the time, by the pixels of a tile: TMA loads as many of them.
HALF_STEP = {64: 0.8, 128: 0.6}
# What a step takes longer where a tile is beyond the last filter, times the part that is: TMA is slow to fill in zeros.
BEYOND = 0.6


@dataclass(frozen=True)
class ConvShape:
    """The size of a convolution; tuples are (height, width), or (depth, height, width).

    ``rows`` are the pixels of its result. ``width`` is the image's, 0 where it is not known or columns are padded
    behind it. With ``groups`` of channels and filters, 0 if there are none, a tile of filters reads a part of the
    channels.
    """

    rows: int
    channels: int
    filters: int
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    width: int = 0
    groups: int = 0

    def __str__(self) -> str:
        """The shape as a part of the key of tuning records."""
        places = " ".join(
            f"{name} {'x'.join(map(str, getattr(self, name)))}" for name in ("window", "padding", "stride", "dilation")
        )
        grouped = f" groups {self.groups}" if self.groups else ""
        return f"{self.rows}x{self.filters}x{self.channels} {places}{grouped}"

    @property
    def product(self) -> GemmShape:
        """The size of the implicit GEMM."""
        return GemmShape(self.rows, self.filters, self.part * math.prod(self.window), 1)

    @property
    def part(self) -> int:
        """The channels that a tile of filters reads."""
        if not self.groups:
            return self.channels
        sizes = self.channels, self.filters, self.groups
        return part_channels(*sizes, group_width(*sizes))

    @property
    def fits_im2col(self) -> bool:
        """Whether TMA supports its windows (cuTensorMapEncodeIm2col): offsets fit in a byte, strides are at most 8.

        Those of three axes fit in five bits (``VOLUME_REACH``).
        """
        most = 127 if len(self.window) == 2 else VOLUME_REACH
        reach = [(extent - 1) * step for extent, step in zip(self.window, self.dilation, strict=True)]
        inside = all(pad <= most and far - pad <= most for pad, far in zip(self.padding, reach, strict=True))
        return inside and max(self.stride) <= 8 and (len(self.window) == 2 or max(reach) <= most)

    def fits_rows(self, itemsize: int) -> bool:
        """Whether kernels by rows take it: nothing is padded along the width, and steps are vectors of 16 bytes."""
        plain = self.padding[1] == 0 and self.dilation[1] == 1 and self.width > 0
        steps = (self.stride[1], self.window[1], self.width)
        return plain and all(step * self.channels * itemsize % VECTOR_BYTES == 0 for step in steps)


def rank_conv(shape: ConvShape, form: GemmForm, options: CutlassOptions, *, margin: float = MARGIN) -> Ranking:
    """Rank the kernels for a convolution; ``margin`` is as in ``rank_gemm``."""

    def time(config: ConvConfig) -> float:
        return _conv_microseconds(config, shape)

    def kernels(family: Family, margin: float = math.inf) -> list[ConvConfig]:
        dtype = multiplied(form.dtype, options)
        made: tuple[ConvConfig, ...]
        if len(shape.window) == 3:
            made = volume_portfolio(dtype, shape.channels, shape.filters) if family == "sm90" else ()
        elif shape.groups:
            made = group_portfolio(dtype, shape.channels, shape.filters, shape.groups) if family == "sm90" else ()
        else:
            made = portfolio(family, dtype, shape.channels, shape.filters, shape.window)
            if family == "sm90" and shape.channels <= LARGEST_PIXEL and shape.fits_rows(ELEMENTS[dtype].size):
                made += row_portfolio(dtype, shape.channels * shape.window[1], shape.filters)
        fitting = [config for config in made if shape.fits_im2col or not isinstance(config.tile, Sm90Tile)]
        return fastest(form.apply(fitting, options), time, margin)

    problem = f"conv{len(shape.window)}d {form.dtype} {shape} {form.epilogue}"
    return rank(problem, options.arch, kernels("sm90", margin), kernels("sm80"), time)


def _conv_microseconds(config: ConvConfig, shape: ConvShape) -> float:
    tile, product, size = config.tile, shape.product, ELEMENTS[config.dtype].size
    times = (ROW_TIMES if config.rows else CONV_TIMES).get(_full(tile).name)
    if times is None:
        return untuned_microseconds(tile, product)
    read = shape.rows * math.prod(shape.stride) * shape.channels
    elements = read + product.columns * (product.depth + product.rows)
    waves, steps = _waves(tile, product)
    n = tile.shape[1]
    beyond = ceil_div(product.columns, n) - product.columns / n
    step = 1.0 if config.rows or tile.shape[2] * size >= FULL_STEP else HALF_STEP[tile.shape[0]]
    return estimate(times, waves, steps * step * (1 + BEYOND * beyond), elements * size)


def _full(tile: Tile) -> Tile:
    """Return the tile in CONV_TIMES: of 16-bit elements and whole steps."""
    if isinstance(tile, Sm80Tile):
        return tile
    return replace(tile, shape=(*tile.shape[:2], FULL_STEP // 2))


def _waves(tile: Tile, product: GemmShape) -> tuple[int, int]:
    """Return the waves of blocks, and the steps of each."""
    m, n, k = tile.shape
    cluster = tile.cluster[0] if isinstance(tile, Sm90Tile) else 1
    rows = ceil_div(ceil_div(product.rows, m), cluster) * cluster
    blocks = rows * ceil_div(product.columns, n) * tile.slices
    return ceil_div(blocks, SMS), ceil_div(ceil_div(product.depth, k), tile.slices)


def untuned_microseconds(tile: Tile, product: GemmShape, throughput: float = 1.0) -> float:
    """Estimate the time of a convolution with a tile without measurements.

    ``throughput`` is that of its element types, relative to 16-bit ones.
    """
    waves, steps = _waves(tile, product)
    rate = throughput * SM80_RATE * (1.6 if isinstance(tile, Sm90Tile) else 1.0)
    return SM80_START + waves * (SM80_WAVE + steps * max(math.prod(tile.shape) / rate, 0.12))

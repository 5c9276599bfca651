"""Analytical cost model of convolutions: rank tiles without a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from packager.backends.cutlass.conv.kernels import ConvConfig, portfolio
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.element_types import ELEMENTS
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import (
    MARGIN,
    SM80_RATE,
    SM80_START,
    SM80_WAVE,
    SMS,
    GemmForm,
    GemmShape,
    ceil_div,
    estimate,
    fastest,
    multiplied,
)
from packager.backends.cutlass.gemm.kernels import Family, Sm90Tile, Tile

# As TIMES, per step of 64 channels of one element of the window: fitted to those of ResNet-50 of batch 1, 8 and 32; the
# choice is 0.4 % slower than the best (at most 4 %). Slices wait for each other.
CONV_TIMES = {
    "128x128x64_c1x1_pingpong": (2.76, 1.029, 0.3136, 0.194),
    "128x64x64_c1x1_pingpong": (2.60, 0.400, 0.1700, 0.440),
    "64x128x64_c1x1_pingpong": (2.14, 0.093, 0.2445, 0.439),
    "64x128x64_c1x2_pingpong": (2.36, 0.946, 0.1608, 0.246),
    "64x64x64_c1x1_pingpong": (1.89, 0.699, 0.1324, 0.011),
    "64x64x64_w32x32_s8_k8": (0.49, 5.841, 0.1017, 1.373),
}


@dataclass(frozen=True)
class ConvShape:
    """The size of a convolution; pairs are (height, width). ``rows`` are the pixels of its result."""

    rows: int
    channels: int
    filters: int
    window: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def __str__(self) -> str:
        """The shape as a part of the key of tuning records."""
        pairs = {name: getattr(self, name) for name in ("window", "padding", "stride", "dilation")}
        places = " ".join(f"{name} {first}x{second}" for name, (first, second) in pairs.items())
        return f"{self.rows}x{self.filters}x{self.channels} {places}"

    @property
    def product(self) -> GemmShape:
        """The size of the implicit GEMM."""
        return GemmShape(self.rows, self.filters, self.channels * math.prod(self.window), 1)

    @property
    def fits_im2col(self) -> bool:
        """Whether TMA supports its windows (cuTensorMapEncodeIm2col): offsets fit in a byte, strides are at most 8."""
        reach = [(extent - 1) * step for extent, step in zip(self.window, self.dilation, strict=True)]
        inside = all(pad <= 127 and far - pad <= 127 for pad, far in zip(self.padding, reach, strict=True))
        return inside and max(self.stride) <= 8


def rank_conv(shape: ConvShape, form: GemmForm, options: CutlassOptions, *, margin: float = MARGIN) -> Ranking:
    """Rank the kernels for a convolution; ``margin`` is as in ``rank_gemm``."""

    def kernels(family: Family, margin: float = math.inf) -> list[ConvConfig]:
        dtype = multiplied(form.dtype, options)
        made = portfolio(family, dtype, shape.channels, shape.filters, shape.window)
        fitting = [config for config in made if shape.fits_im2col or not isinstance(config.tile, Sm90Tile)]
        return fastest(form.apply(fitting, options), lambda config: _conv_microseconds(config, shape), margin)

    problem = f"conv2d {form.dtype} {shape} {form.epilogue}"
    return rank(problem, options.arch, kernels("sm90", margin), kernels("sm80"))


def _conv_microseconds(config: ConvConfig, shape: ConvShape) -> float:
    product, times = shape.product, CONV_TIMES.get(config.tile.name)
    if times is None:
        return untuned_microseconds(config.tile, product)
    read = shape.rows * math.prod(shape.stride) * shape.channels
    elements = read + product.columns * (product.depth + product.rows)
    return estimate(times, *_waves(config.tile, product), elements * ELEMENTS[config.dtype].size)


def _waves(tile: Tile, product: GemmShape) -> tuple[int, int]:
    """Return the waves of blocks, and the steps of each."""
    m, n, k = tile.shape
    blocks = ceil_div(product.rows, m) * ceil_div(product.columns, n) * tile.slices
    return ceil_div(blocks, SMS), ceil_div(ceil_div(product.depth, k), tile.slices)


def untuned_microseconds(tile: Tile, product: GemmShape, throughput: float = 1.0) -> float:
    """Estimate the time of a convolution with a tile without measurements.

    ``throughput`` is that of its element types, relative to 16-bit ones.
    """
    waves, steps = _waves(tile, product)
    rate = throughput * SM80_RATE * (1.6 if isinstance(tile, Sm90Tile) else 1.0)
    return SM80_START + waves * (SM80_WAVE + steps * max(math.prod(tile.shape) / rate, 0.12))

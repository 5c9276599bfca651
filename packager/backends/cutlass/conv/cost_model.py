"""Analytical cost model of convolutions: rank tiles without a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from packager.backends.cutlass.conv.kernels import ConvConfig, Family, Sm90ConvTile, portfolio
from packager.backends.cutlass.core.drafts import Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import (
    MARGIN,
    SM80_RATE,
    SM80_START,
    SM80_WAVE,
    SMS,
    GemmShape,
    _estimate,
    ceil_div,
    multiplied,
)
from packager.backends.cutlass.gemm.kernels import TYPES

# The same of convolutions' tiles, for a step of 64 channels of one place of the window: fitted to those of ResNet-50 of
# batch 1, 8 and 32; the choice is 0.4 % slower than the best (at most 4 %). Slices wait for each other.
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
    """What is known of a convolution; pairs are of height and width. ``rows`` are the places of its result."""

    rows: int
    channels: int
    filters: int
    window: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def __str__(self) -> str:
        """The shape as a part of a problem to measure."""
        pairs = {name: getattr(self, name) for name in ("window", "padding", "stride", "dilation")}
        places = " ".join(f"{name} {first}x{second}" for name, (first, second) in pairs.items())
        return f"{self.rows}x{self.filters}x{self.channels} {places}"

    @property
    def product(self) -> GemmShape:
        """The size of the product that it is."""
        return GemmShape(self.rows, self.filters, self.channels * math.prod(self.window), 1)

    @property
    def fits_im2col(self) -> bool:
        """Whether TMA walks over its windows (cuTensorMapEncodeIm2col): offsets are bytes, strides at most 8."""
        reach = [(extent - 1) * step for extent, step in zip(self.window, self.dilation, strict=True)]
        inside = all(pad <= 127 and far - pad <= 127 for pad, far in zip(self.padding, reach, strict=True))
        return inside and max(self.stride) <= 8


def rank_conv(
    shape: ConvShape,
    dtype: str,
    options: CutlassOptions,
    *,
    activation: str,
    residual: bool,
    margin: float = MARGIN,
) -> Ranking:
    """Return the kernels for a convolution. ``margin`` is as of products."""
    made = partial(
        portfolio,
        dtype=multiplied(dtype, options),
        channels=shape.channels,
        filters=shape.filters,
        window=shape.window,
        activation=activation,
        residual=residual,
        fast_math=options.use_fast_math,
    )

    def ranked(family: Family) -> list[ConvConfig]:
        found = [k for k in made(family) if shape.fits_im2col or not isinstance(k.tile, Sm90ConvTile)]
        return sorted(found, key=time)

    def time(config: ConvConfig) -> float:
        return _conv_microseconds(config, shape)

    problem = f"conv2d {dtype} {shape} {activation}{' residual' * residual}"
    newest = ranked("sm90")
    newest = [config for config in newest if time(config) <= margin * time(newest[0])]
    return rank(problem, options.arch, newest, ranked("sm80"))


def _conv_microseconds(config: ConvConfig, shape: ConvShape) -> float:
    m, n, k = config.tile.shape
    product, slices = shape.product, config.tile.slices
    waves = ceil_div(ceil_div(product.rows, m) * ceil_div(product.columns, n) * slices, SMS)
    steps = ceil_div(ceil_div(product.depth, k), slices)
    times = CONV_TIMES.get(config.tile.name)
    if times is not None:
        read = shape.rows * math.prod(shape.stride) * shape.channels
        elements = read + product.columns * (product.depth + product.rows)
        return _estimate(times, waves, steps, elements * TYPES[config.dtype].size)
    rate = SM80_RATE * (1.6 if isinstance(config.tile, Sm90ConvTile) else 1.0)
    return SM80_START + waves * (SM80_WAVE + steps * max(m * n * k / rate, 0.12))

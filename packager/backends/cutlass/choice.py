"""Which kernel for which problem, with no GPU to ask: an estimate of the time that each tile takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packager.backends.cutlass.conv_kernels import ConvConfig, Family, Sm90ConvTile, portfolio
from packager.backends.cutlass.functions import Choice, KernelConfig, choices_for
from packager.backends.cutlass.gemm_kernels import TYPES, Sm80Tile, Sm90Tile, Tile
from packager.backends.cutlass.gemm_portfolio import portfolio as tiles_of


@dataclass(frozen=True)
class GemmShape:
    """What is known of a product's size; of dims that are not known the largest."""

    rows: int
    columns: int
    depth: int
    batch: int


ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
SMS = 132  # of an H100 or H200
# Microseconds of each sm90 tile on an H200: to start, for a wave of blocks, and for 128 bytes of K in a wave. Fitted to
# 20 sizes of 16-bit products, from 16 to 8192 rows; over these the choice is 1.8 % slower than the best one (geometric
# mean, at most 10 %), and 3 % faster than torch's linear.
TIMES = {
    "64x128x64_c2x1_pingpong": (2.63, 1.262, 0.1906),
    "128x128x64_c2x1_pingpong": (1.79, 0.645, 0.3561),
    "64x64x128_c1x1_pingpong": (1.65, 0.576, 0.1480),
    "256x128x64_c1x2_cooperative": (0.0, 2.623, 0.6902),
    "128x256x64_c2x1_cooperative": (0.0, 2.628, 0.7023),
    "64x16x128_c1x1_pingpong_t": (1.30, 0.326, 0.1174),
    "64x32x128_c1x1_pingpong_t": (0.82, 0.569, 0.1274),
    "64x96x64_c1x1_plain": (0.0, 3.068, 0.1540),
    "64x96x128_c1x1_plain": (0.0, 1.970, 0.2078),
    "128x144x64_c1x1_cooperative_e128x48": (0.0, 1.995, 0.4386),
    "64x192x64_c1x1_plain_s3_b2": (2.99, 0.0, 0.3665),
    "128x192x64_c1x1_cooperative": (0.14, 4.958, 0.4729),
    "256x96x64_c1x1_cooperative": (0.0, 4.450, 0.4796),
}
# What sm80 kernels reach of one multiprocessor, in elements of a tile times K for each microsecond.
SM80_START, SM80_WAVE, SM80_RATE = 2.0, 1.0, 1.8e6


def choose_gemm(
    shape: GemmShape,
    dtype: str,
    out: str,
    divisor: int,
    b_rows: bool,
    archs: Sequence[str],
    make: Callable[[Any, int], KernelConfig],
) -> tuple[Choice, ...]:
    """Return the kernels for a product, one for each kind of GPU; empty if there is none.

    ``divisor`` divides all extents that rows of memory are made of.
    """
    full = 16 // TYPES[dtype].size
    alignment = math.gcd(divisor, full)

    def best(family: str) -> KernelConfig | None:
        tiles = [tile for tile in tiles_of(family, dtype, out, alignment=alignment, b_rows=b_rows) if _is_alone(tile)]
        tile = min(tiles, key=lambda tile: microseconds(tile, shape, TYPES[dtype].size), default=None)
        return None if tile is None else make(tile, alignment)

    aligned = alignment == full and divisor % (16 // ITEMSIZE[out]) == 0
    return choices_for(archs, best("sm90") if aligned else None, best("sm80"))


def _is_alone(tile: Tile) -> bool:
    """Whether its blocks need no workspace that is zero before the first launch."""
    return isinstance(tile, Sm90Tile) or tile.slices == 1


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


def choose_conv(
    shape: ConvShape, dtype: str, archs: Sequence[str], *, activation: str, residual: bool
) -> tuple[Choice, ...]:
    """Return the kernels for a convolution, one for each kind of GPU."""

    def configs(family: Family) -> list[ConvConfig]:
        found = portfolio(
            family, dtype, shape.channels, shape.filters, shape.window, activation=activation, residual=residual
        )
        return [config for config in found if shape.fits_im2col or not isinstance(config.tile, Sm90ConvTile)]

    def best(found: Sequence[ConvConfig]) -> ConvConfig | None:
        return min(found, key=lambda config: _conv_microseconds(config, shape.product), default=None)

    return choices_for(archs, best(configs("sm90")), best(configs("sm80")))


def _conv_microseconds(config: ConvConfig, shape: GemmShape) -> float:
    m, n, k = config.tile.shape
    rate = SM80_RATE * (1.6 if isinstance(config.tile, Sm90ConvTile) else 1.0)
    slices = config.tile.slices
    waves = _up(_up(shape.rows, m) * _up(shape.columns, n) * slices, SMS)
    steps = _up(_up(shape.depth, k), slices)
    return SM80_START + waves * (SM80_WAVE + steps * max(m * n * k / rate, 0.12))


def microseconds(tile: Tile, shape: GemmShape, itemsize: int) -> float:
    """Estimate the time that a product takes with a tile: waves of blocks, each so many steps along K."""
    m, n, _ = tile.shape
    if isinstance(tile, Sm80Tile):
        waves = _up(_up(shape.rows, m) * _up(shape.columns, n) * shape.batch, SMS)
        # Narrow tiles read more for each product.
        rate = SM80_RATE * min(m, n, 64) / 64 * 2 / itemsize
        return SM80_START + waves * (SM80_WAVE + m * n * shape.depth / rate)
    (cm, cn) = tile.cluster
    if tile.swapped:
        m, n, cm, cn = n, m, cn, cm
    blocks = _up(_up(shape.rows, m), cm) * cm * _up(_up(shape.columns, n), cn) * cn * shape.batch
    waves = _up(blocks, SMS * tile.blocks) * tile.blocks if blocks > SMS else 1
    start, wave, step = TIMES[_key(tile, itemsize)]
    return start + waves * (wave + step * shape.depth * itemsize / 128)


def _key(tile: Sm90Tile, itemsize: int) -> str:
    """Return the name of a tile as 16-bit products have it."""
    return replace(tile, shape=(*tile.shape[:2], tile.shape[2] * itemsize // 2)).name


def _up(a: int, b: int) -> int:
    return -(-a // b)

"""Which kernel for which problem, with no GPU to ask: an estimate of the time that each tile takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.cutlass.conv_kernels import ConvConfig, Family, Sm90ConvTile, portfolio
from packager.backends.cutlass.functions import SM90A, Choice, KernelConfig, choices_for
from packager.backends.cutlass.gemm_kernels import TYPES, Sm80Tile, Sm90Tile


@dataclass(frozen=True)
class GemmShape:
    """What is known of a product's size; of dims that are not known the largest."""

    rows: int
    columns: int
    depth: int
    batch: int


ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
SM90_TILES = (
    Sm90Tile((64, 16, 128), schedule="plain", swapped=True),
    Sm90Tile((64, 32, 128), schedule="plain", swapped=True),
    Sm90Tile((64, 64, 128)),
    Sm90Tile((64, 96, 128), schedule="plain"),
    Sm90Tile((64, 128, 64), (2, 1)),
    Sm90Tile((64, 192, 64), schedule="plain", stages=3),
    Sm90Tile((128, 128, 64), (2, 1)),
    Sm90Tile((128, 144, 64), schedule="cooperative", epilogue=(128, 48)),
    Sm90Tile((128, 192, 64), schedule="cooperative"),
    Sm90Tile((256, 128, 64), (1, 2), "cooperative"),
)
SM80_TILES = (
    Sm80Tile((16, 128, 64), (16, 32), 5),
    Sm80Tile((64, 64, 64), (32, 32), 5),
    Sm80Tile((128, 128, 64), (64, 64), 3),
)
# With float32 operands tiles are half as deep; three products for each take registers.
SM80_FLOAT_TILES = (
    Sm80Tile((64, 64, 16), (32, 32), 4),
    Sm80Tile((128, 64, 16), (64, 32), 3),
)
# Of an H100 or H200 at 1.8 GHz, for each multiprocessor and clock.
SMS, FLOPS, BYTES = 132, 4096.0, 48.0
START, ITERATION = 2600.0, 60.0  # clocks: a block's prologue and epilogue, and the least of a step along K


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
    element = TYPES[dtype]
    full = 16 // element.size
    newest = None
    if element.sm90 and divisor % max(full, 16 // ITEMSIZE[out]) == 0 and (element.rows or not b_rows):
        newest = make(min(SM90_TILES, key=lambda tile: _clocks90(tile, shape)), full)
    alignment = math.gcd(divisor, full)
    tiles = SM80_TILES if element.size == 2 else SM80_FLOAT_TILES
    plain = make(min(tiles, key=lambda tile: _clocks80(tile, shape)), alignment)
    return choices_for(archs, newest, plain)


def choose_conv(
    shape: GemmShape,
    dtype: str,
    channels: int,
    filters: int,
    window: tuple[int, int],
    archs: Sequence[str],
    *,
    activation: str,
    residual: bool,
) -> tuple[Choice, ...]:
    """Return the kernels for a convolution, one for each kind of GPU; ``shape`` is that of the product it is."""

    def best(family: Family) -> ConvConfig | None:
        fitting = portfolio(family, dtype, channels, filters, window, activation=activation, residual=residual)
        return min(fitting, key=lambda config: _conv_clocks(config, shape), default=None)

    return choices_for(archs, best("sm90") if SM90A in archs else None, best("sm80"))


def _conv_clocks(config: ConvConfig, shape: GemmShape) -> float:
    m, n, k = config.tile.shape
    rate = 1.0 if isinstance(config.tile, Sm90ConvTile) else 0.5
    slices = config.tile.slices
    waves = _up(_up(shape.rows, m) * _up(shape.columns, n) * slices, SMS)
    step = max(2 * m * n * k / (FLOPS * rate), (m + n) * k * 2 / BYTES, ITERATION)
    return START + waves * (m * n * 4 / 64 + _up(_up(shape.depth, k), slices) * step)


def _clocks90(tile: Sm90Tile, shape: GemmShape) -> float:
    m, n, k = tile.shape
    if tile.swapped:
        m, n = n, m
    (cm, cn) = tile.cluster
    blocks = _up(_up(shape.rows, m), cm) * cm * _up(_up(shape.columns, n), cn) * cn * shape.batch
    waves = _up(blocks, SMS)
    # Of a cluster, blocks read each a part of what they share.
    loaded = (m / cn + n / cm) * k * 2
    step = max(2 * m * n * k / FLOPS, loaded / BYTES, ITERATION)
    overlap = 0.5 if tile.schedule == "pingpong" else 1.0
    return START + waves * (overlap * m * n * 4 / 64 + _up(shape.depth, k) * step)


def _clocks80(tile: Sm80Tile, shape: GemmShape) -> float:
    m, n, k = tile.shape
    waves = _up(_up(shape.rows, m) * _up(shape.columns, n) * shape.batch, SMS)
    step = max(2 * m * n * k / (FLOPS / 2), (m + n) * k * 2 / BYTES, ITERATION)
    return START + waves * (m * n * 4 / 64 + _up(shape.depth, k) * step)


def _up(a: int, b: int) -> int:
    return -(-a // b)

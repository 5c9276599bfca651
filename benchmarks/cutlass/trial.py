"""Kernels that are measured beside those that packager chooses from: what may be worth a place in a portfolio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.cutlass.convolutions import Conv, Stem
from benchmarks.cutlass.problems import Problem, Product
from packager.backends.cutlass.conv.kernels import ConvConfig
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.gemm.cost_model import ceil_div
from packager.backends.cutlass.gemm.kernels import SMS, GemmConfig
from packager.backends.cutlass.gemm.tilings import Sm90Tile

DTYPE = "float16"
BOTH, ROWS, COLUMNS, NONE = (2, 2), (2, 1), (1, 2), (1, 1)
CONV = (
    *(Sm90Tile((128, 128, 64), cluster) for cluster in (ROWS, COLUMNS)),
    *(Sm90Tile((64, 128, 64), cluster) for cluster in (NONE, ROWS, COLUMNS)),
    *(Sm90Tile((128, 160, 64), cluster, "cooperative") for cluster in (NONE, ROWS, COLUMNS)),
    *(Sm90Tile((128, 160, 64), cluster) for cluster in (NONE, ROWS)),
    *(Sm90Tile((64, 160, 64), cluster) for cluster in (NONE, ROWS)),
    *(Sm90Tile((128, 192, 64), cluster, "cooperative") for cluster in (NONE, ROWS)),
    *(Sm90Tile((128, 256, 64), cluster, "cooperative") for cluster in (NONE, ROWS)),
    *(Sm90Tile((256, 128, 64), cluster, "cooperative") for cluster in (NONE, ROWS, COLUMNS)),
    *(Sm90Tile((256, 64, 64), cluster, "cooperative") for cluster in (NONE, ROWS)),
    *(Sm90Tile((128, 32, 64), cluster) for cluster in (NONE, ROWS)),
    *(Sm90Tile((256, 32, 64), cluster, "cooperative") for cluster in (NONE, ROWS)),
    *(Sm90Tile((rows, columns, 64)) for rows, columns in ((64, 32), (128, 16), (128, 48), (128, 96), (64, 96))),
    Sm90Tile((128, 64, 64), ROWS),
    Sm90Tile((64, 80, 64), ROWS),
    Sm90Tile((64, 256, 64), NONE),
)
STEM = (
    *(Sm90Tile((256, 64, 64), cluster, "cooperative") for cluster in (NONE, ROWS)),
    *(Sm90Tile((64, 64, 64), cluster) for cluster in (NONE, ROWS)),
    *(Sm90Tile((128, 32, 64), cluster) for cluster in (NONE, ROWS)),
)


def _wide(rows: int, columns: int, *clusters: tuple[int, int], depth: int = 64) -> tuple[Sm90Tile, ...]:
    """Return cooperative tiles of 128 rows or more; the default epilogue is 32 columns wide."""
    epilogue = None if columns % 32 == 0 else (128, 48 if columns % 48 == 0 else 16)
    return tuple(Sm90Tile((rows, columns, depth), cluster, "cooperative", epilogue=epilogue) for cluster in clusters)


# Of 64 rows and more: tiles that make one wave of 132 SMs of 4,096 to 14,336 columns, and clusters that share operands.
PRODUCT = (
    *(Sm90Tile((64, 64, 128), cluster) for cluster in (ROWS, COLUMNS, BOTH, (1, 4))),
    Sm90Tile((64, 48, 128), ROWS, epilogue=(64, 48)),
    Sm90Tile((64, 32, 128), ROWS),
    Sm90Tile((64, 96, 128), ROWS),
    *(Sm90Tile((64, 128, 64), cluster) for cluster in (NONE, COLUMNS, BOTH)),
    Sm90Tile((64, 128, 128), ROWS),
    Sm90Tile((64, 144, 64), ROWS, epilogue=(64, 48)),
    Sm90Tile((64, 176, 64), ROWS, epilogue=(64, 16)),
    Sm90Tile((64, 192, 64), ROWS),
    *(Sm90Tile((64, 256, 64), cluster) for cluster in (ROWS, COLUMNS)),
    Sm90Tile((64, 64, 64), ROWS, "plain", stages=4, blocks=3),
    *(Sm90Tile((64, 128, 64), cluster, "plain", stages=4, blocks=2) for cluster in (NONE, ROWS)),
    *_wide(128, 32, COLUMNS, (1, 4), depth=128),
    *_wide(128, 48, COLUMNS, depth=128),
    *_wide(128, 64, NONE, COLUMNS, depth=128),
    *_wide(128, 64, ROWS, (1, 4)),
    Sm90Tile((128, 64, 64), COLUMNS),
    *_wide(128, 80, COLUMNS),
    *_wide(128, 96, NONE, COLUMNS, ROWS),
    *_wide(128, 112, COLUMNS),
    *_wide(128, 128, NONE, COLUMNS, ROWS),
    *(Sm90Tile((128, 128, 64), cluster) for cluster in (NONE, COLUMNS)),
    *_wide(128, 144, COLUMNS),
    *_wide(128, 160, NONE),
    *_wide(128, 176, NONE, COLUMNS),
    *_wide(128, 192, COLUMNS, ROWS),
    *_wide(128, 224, COLUMNS),
    *_wide(128, 256, NONE, COLUMNS),
    *_wide(256, 64, COLUMNS),
    *_wide(256, 96, COLUMNS),
    *_wide(256, 128, NONE, ROWS),
    *_wide(256, 160, COLUMNS),
    *_wide(256, 192, COLUMNS),
    Sm90Tile((64, 64, 128), ROWS, swapped=True),
    *(Sm90Tile((64, rows, 64), ROWS, swapped=True) for rows in (128, 192)),
)
# Tiles whose rough estimate exceeds the best one by this factor are not measured.
TOO_SLOW = 1.8


def rough_cost(tile: Sm90Tile, problem: Product) -> float:
    """Estimate clocks of a tile that was never measured: waves of multiplications or of bytes from the L2 cache."""
    m, n, _ = tile.shape
    cm, cn = tile.cluster
    moved = m / cn + n / cm
    if tile.swapped:
        m, n, cm, cn = n, m, cn, cm
    blocks = ceil_div(ceil_div(problem.m, m), cm) * cm * ceil_div(ceil_div(problem.n, n), cn) * cn
    waves = ceil_div(blocks, SMS)
    return waves * (2000 + problem.k * max(m * n / 2048, moved * 2 / 40))


def trial_kernels(problem: Problem, known: Sequence[KernelConfig]) -> list[KernelConfig]:
    """Return kernels for a convolution or a product whose tiles may be worth a place, beside those that are known."""
    names = {config.name for config in known}
    return [config for config in _trial_kernels(problem) if config.name not in names]


def _trial_kernels(problem: Problem) -> Sequence[KernelConfig]:
    if problem.form.dtype != DTYPE or problem.form.out != DTYPE:
        return ()
    if isinstance(problem, Product):
        if problem.batch or problem.n % 8 or problem.k % 8:
            return ()
        costs = {tile: rough_cost(tile, problem) for tile in PRODUCT}
        near = (tile for tile, cost in costs.items() if cost <= TOO_SLOW * min(costs.values()))
        return [GemmConfig(tile, DTYPE, DTYPE, 8, early=True) for tile in near]
    if not isinstance(problem, Conv) or problem.groups > 1:
        return ()
    if isinstance(problem, Stem):
        step = min(64, problem.padded_window[1] * problem.fold * problem.pixel)
        tiles = (replace(tile, shape=(*tile.shape[:2], step)) for tile in STEM)
        return [ConvConfig(tile, DTYPE, 8, 8, rows=True, activation="relu") for tile in tiles]
    if problem.channels % 8:
        return ()
    rest = problem.channels % 64
    step = 64 if rest > 32 or not rest else 16 if problem.channels <= 16 else 32
    tiles = (replace(tile, shape=(*tile.shape[:2], step)) for tile in CONV if fits_filters(tile, problem.filters))
    return [ConvConfig(tile, DTYPE, 8, 8, activation="relu") for tile in tiles]


def fits_filters(tile: Sm90Tile, filters: int) -> bool:
    """Return whether at most a third of what a tile computes is not needed."""
    width = tile.shape[1]
    return -(-filters // width) * width * 2 <= filters * 3

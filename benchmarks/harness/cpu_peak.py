"""What a core can do at most, and what part of it a matrix product reaches.

A problem is MxNxK: x[M, K] times a constant w[K, N], float32. The peak is that of c/engine_fma.c: multiply-adds of
vectors by themselves, or with the loads that a tile of a product must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.measure import Spread
from benchmarks.harness.turns import Model, Worker, level

# Of c/engine_fma.c: how often its loops go round, how many sums the one without loads has.
ROUNDS, SUMS = 102_400, 12
# Lanes of a vector, and rows of the tile in the loop with loads.
VECTORS = {"x86-64-v3": (8, 6), "x86-64-v4": (16, 14)}


def start_peak(folder: Path, *, loads: bool = False) -> Worker:
    """Return a worker whose calls are such a loop; ``folder`` has the program ``serve``."""
    engine = f"fma={level()}{'+loads' if loads else ''}"
    return Worker(Model("fma", 1, folder / "serve", {}, {}), [folder / "serve", engine], folder)


def peak_flops(*, loads: bool = False) -> int:
    """Return the FLOPs of one of its calls."""
    lanes, rows = VECTORS[level()]
    return ROUNDS * lanes * 2 * (2 * rows if loads else SUMS)


def product_flops(problem: str) -> int:
    """Return the FLOPs of a product."""
    m, n, k = map(int, problem.split("x"))
    return 2 * m * n * k


def share(problem: str, times: Sequence[float], peaks: Sequence[float], *, loads: bool = False) -> Spread:
    """Return the share of the peak in percent that a product has, by seconds of their calls in the same rounds."""
    calls = product_flops(problem) / peak_flops(loads=loads)
    return Spread.of([100 * calls * peak / own for own, peak in zip(times, peaks, strict=True)])

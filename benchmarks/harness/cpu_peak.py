"""The peak of a core, and the share of it that a matrix product reaches.

A problem is MxNxK: x[M, K] times a constant w[K, N], float32. The peak is that of c/engine_fma.c: multiply-adds of
vectors by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness.measure import Spread
from benchmarks.harness.turns import Model, Worker, level

ITERATIONS, ACCUMULATORS = 102_400, 12  # of c/engine_fma.c
LANES = {"x86-64-v3": 8, "x86-64-v4": 16}


def peak(folder: Path) -> Callable[[], Worker]:
    """Return what starts the peak's loop; ``folder`` has the program ``serve``."""
    return partial(Worker, Model("fma", 1, folder / "serve", {}, {}), [folder / "serve", f"fma={level()}"], folder)


def peak_flops() -> int:
    """Return the FLOPs of one call of the peak's loop."""
    return ITERATIONS * LANES[level()] * 2 * ACCUMULATORS


def product_flops(problem: str) -> int:
    """Return the FLOPs of a product."""
    m, n, k = map(int, problem.split("x"))
    return 2 * m * n * k


def share(problem: str, times: Sequence[float], peaks: Sequence[float]) -> Spread:
    """Return the share of the peak in percent that a product has, by seconds of their calls in the same rounds."""
    calls = product_flops(problem) / peak_flops()
    return Spread.of([100 * calls * peak / own for own, peak in zip(times, peaks, strict=True)])

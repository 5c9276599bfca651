"""Measures a bundle: loading, creating a session, running."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.deploy.loader import load
from packager.deploy.randomdata import random_inputs
from packager.errors import UsageError


@dataclass(frozen=True)
class BenchResult:
    """Times in milliseconds, sizes in bytes. ``load_ms`` reads the manifest and maps the file; nothing is warm-up."""

    schema_version: int
    path: str
    model: str
    runs: int
    warmup: int
    threads: int
    seed: int
    dims: dict[str, int]
    median_ms: float
    p5_ms: float
    p95_ms: float
    min_ms: float
    mean_ms: float
    load_ms: float
    session_create_ms: float
    first_run_ms: float
    arena_bytes: int
    constant_bytes: int
    file_bytes: int
    primitives: int
    calls: int
    flops: int
    gflops_per_second: float

    def to_json(self) -> dict[str, Any]:
        """Return the value that ``packager bench --json`` prints."""
        return asdict(self)


def bench(path: str | Path, runs: int = 100, warmup: int = 10, threads: int = 0, seed: int = 0) -> BenchResult:
    """Run a bundle ``warmup + runs`` times with the same random inputs, symbolic dims at their maxima.

    The time of a run is that of ``Session.run`` with outputs given, about 20 microseconds more than the C call.
    Raises UsageError, BundleError, RunError.
    """
    if runs < 1 or warmup < 0:
        raise UsageError("runs must be at least 1 and warmup at least 0")
    start = time.perf_counter()
    bundle = load(path, threads=threads)
    loaded = time.perf_counter()
    with bundle:
        manifest = bundle.manifest
        inputs = random_inputs(manifest, seed)
        create_start = time.perf_counter()
        session = bundle.session()
        created = time.perf_counter()
        outputs = session.run(inputs)
        first = time.perf_counter()
        for _ in range(warmup):
            session.run(inputs, outputs=outputs)
        times = np.empty(runs)
        for index in range(runs):
            run_start = time.perf_counter()
            session.run(inputs, outputs=outputs)
            times[index] = time.perf_counter() - run_start
        session.close()
    times *= 1e3
    p5, median, p95 = (float(value) for value in np.percentile(times, (5, 50, 95)))
    primitives = [primitive for _, primitive in manifest.primitives()]
    flops = sum(primitive.flops * primitive.calls for primitive in primitives)
    return BenchResult(
        schema_version=1,
        path=str(path),
        model=manifest.model.name,
        runs=runs,
        warmup=warmup,
        threads=max(threads, 1),
        seed=seed,
        dims={dim.name: dim.max for dim in manifest.dims},
        median_ms=median,
        p5_ms=p5,
        p95_ms=p95,
        min_ms=float(times.min()),
        mean_ms=float(times.mean()),
        load_ms=(loaded - start) * 1e3,
        session_create_ms=(created - create_start) * 1e3,
        first_run_ms=(first - created) * 1e3,
        arena_bytes=manifest.arena_bytes,
        constant_bytes=manifest.weights.bytes,
        file_bytes=manifest.sizes.file,
        primitives=len(primitives),
        calls=sum(primitive.calls for primitive in primitives),
        flops=flops,
        gflops_per_second=flops / median / 1e6 if median else 0.0,
    )

"""Measures a bundle: load time, session creation, runs, and each primitive function."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.buckets import Sizes
from packager.deploy.load.loader import Bundle, load
from packager.deploy.load.session import Session
from packager.deploy.load.tensors import empty
from packager.deploy.measure import bench_cuda
from packager.deploy.measure.bench_cuda import CudaFigures, Measured
from packager.deploy.measure.profile import Profile, profile_runs
from packager.deploy.measure.random_inputs import all_sizes, random_inputs
from packager.errors import UsageError
from packager.progress import counted

REPORTED_SECONDS = 0.25
"""Between two reports of how many runs are done: seldom enough to disturb no run."""


@dataclass(frozen=True)
class BenchResult:
    """Times in milliseconds, sizes in bytes. ``load_ms`` is reading the manifest and mapping the file, without warm-up.

    ``flops``, and so the rates, are None where ``dims`` are below their maxima, which the manifest counts work for.
    ``profile`` is None unless requested; ``cuda`` is None for CPU bundles.
    """

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
    flops: int | None
    gflops_per_second: float | None
    profile: Profile | None
    cuda: CudaFigures | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager bench --json``."""
        return asdict(self)


def bench(
    path: str | Path,
    runs: int = 100,
    warmup: int = 10,
    threads: int = 0,
    seed: int = 0,
    *,
    device: int = 0,
    graph: str = "auto",
    profile: bool = False,
    libraries: Sequence[str | Path] | None = None,
    sizes: Sizes | None = None,
) -> BenchResult:
    """Run a bundle ``warmup + runs`` times with the same random inputs. States carry over from run to run.

    Symbolic dims have their sizes from ``sizes``, or are at their maxima.

    A run is ``Session.run`` with preallocated outputs, about 20 us more than the C call. For a CUDA bundle it is
    measured on the GPU, by events, with inputs and outputs in device memory; ``graph`` is as in ``Bundle.session``.
    ``profile`` adds the times of primitive functions; ``libraries`` is as in ``packager.load``.
    Raises UsageError, BundleError, RunError.
    """
    if runs < 1 or warmup < 0:
        raise UsageError("runs must be at least 1 and warmup at least 0")
    start = time.perf_counter()
    bundle = load(path, threads=threads, device=device, libraries=libraries)
    load_ms = (time.perf_counter() - start) * 1e3
    with bundle:
        manifest = bundle.manifest
        dims = all_sizes(manifest, sizes or {})
        inputs = random_inputs(manifest, seed, dims)
        if bundle.on_cuda:
            measured = bench_cuda.measure(bundle, inputs, runs, warmup, device=device, graph=graph, profile=profile)
        else:
            measured = _measure(bundle, inputs, runs, warmup, graph=graph, profile=profile)
        calls, flops = _work(bundle, inputs)
    as_counted = all(dims[dim.name] == dim.max or dim.buckets for dim in manifest.dims)
    times = measured.runs
    p5, median, p95 = (float(value) for value in np.percentile(times, (5, 50, 95)))
    primitives = [primitive for _, primitive in manifest.primitives()]
    return BenchResult(
        schema_version=1,
        path=str(path),
        model=manifest.model.name,
        runs=runs,
        warmup=warmup,
        threads=max(threads, 1),
        seed=seed,
        dims=dims,
        median_ms=median,
        p5_ms=p5,
        p95_ms=p95,
        min_ms=float(times.min()),
        mean_ms=float(times.mean()),
        load_ms=load_ms,
        session_create_ms=measured.session_create_ms,
        first_run_ms=measured.first_run_ms,
        arena_bytes=manifest.arena_bytes,
        constant_bytes=manifest.weights.bytes,
        file_bytes=manifest.sizes.file,
        primitives=len(primitives),
        calls=calls,
        flops=flops if as_counted else None,
        gflops_per_second=flops / median / 1e6 if as_counted and median else None,
        profile=measured.profile if as_counted or not measured.profile else measured.profile.without_rates(),
        cuda=measured.cuda,
    )


def host_outputs(bundle: Bundle, session: Session, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Allocate outputs of the first entry for these inputs, by name."""
    shapes = session.output_shapes(inputs)
    return {info.name: empty(info.name, info.dtype, shapes[info.name]) for info in bundle.outputs}


def _work(bundle: Bundle, inputs: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
    """Return the calls and FLOPs of a run. Profiles one, since the manifest sums over entries and variants."""
    primitives = {primitive.symbol: primitive for _, primitive in bundle.manifest.primitives()}
    if not bundle.manifest.entries and not any(dim.buckets for dim in bundle.manifest.dims):
        return (
            sum(primitive.calls for primitive in primitives.values()),
            sum(primitive.flops * primitive.calls for primitive in primitives.values()),
        )
    with bundle.session() as session:
        steps = session.profile(inputs)
    called = [primitives[step.symbol] for step in steps if step.symbol in primitives]  # copies are not primitives
    return len(called), sum(primitive.flops for primitive in called)


def _measure(
    bundle: Bundle, inputs: Mapping[str, NDArray[Any]], runs: int, warmup: int, *, graph: str, profile: bool
) -> Measured:
    create_start = time.perf_counter()
    session = bundle.session(graph=graph)
    created = time.perf_counter()
    session.run(inputs)
    first = time.perf_counter()
    outputs = host_outputs(bundle, session, inputs)
    times = _time_runs(lambda: session.run(inputs, outputs=outputs), warmup + runs, first - created)[warmup:]
    found = profile_runs(bundle, session, inputs, outputs, runs) if profile else None
    session.close()
    return Measured(times * 1e3, (created - create_start) * 1e3, (first - created) * 1e3, found, None)


def _time_runs(run: Callable[[], object], count: int, earlier: float) -> NDArray[np.float64]:
    """Return the seconds of each run, and report now and then how many are done. ``earlier`` is what one has taken."""
    times = np.empty(count)
    with counted("measuring run", count, earlier=earlier) as steps:
        reported, done = time.perf_counter(), 0
        for index in range(count):
            start = time.perf_counter()
            run()
            end = time.perf_counter()
            times[index] = end - start
            if end - reported > REPORTED_SECONDS:
                steps.count(index + 1 - done, end - reported)
                reported, done = end, index + 1
    return times

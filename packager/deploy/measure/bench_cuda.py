"""Measures a CUDA bundle with inputs and outputs in device memory, by CUDA events."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.manifest import Manifest
from packager.deploy.load.loader import Bundle
from packager.deploy.load.session import Session
from packager.deploy.measure.cuda_memory import Device, DeviceArray
from packager.deploy.measure.profile import Profile, profile_runs


@dataclass(frozen=True)
class CudaFigures:
    """Measurements specific to CUDA bundles.

    ``enqueue_us`` is the host time of the C call on an idle stream; ``latency_ms`` is until the host sees the run
    complete. ``context_ms`` is the driver's startup time.
    """

    device: int
    name: str
    arch: str
    driver: str
    graph: str
    context_ms: float
    enqueue_us_median: float
    enqueue_us_p95: float
    latency_ms_median: float
    latency_ms_p95: float


@dataclass(frozen=True)
class Measured:
    """Milliseconds of each run, and of loading and session creation."""

    runs: NDArray[np.float64]
    session_create_ms: float
    first_run_ms: float
    profile: Profile | None
    cuda: CudaFigures | None


def measure(
    bundle: Bundle,
    inputs: Mapping[str, NDArray[Any]],
    runs: int,
    warmup: int,
    *,
    device: int,
    graph: str,
    profile: bool,
) -> Measured:
    """Run a CUDA bundle ``1 + warmup`` times, ``runs`` times back to back, and ``runs`` times synchronously.

    The time of a run is between two events on its stream, with another run before it: the GPU's time, or the host's if
    that is longer. Raises RunError.
    """
    start = time.perf_counter()
    with Device(device) as gpu:
        context_ms = (time.perf_counter() - start) * 1e3
        create_start = time.perf_counter()
        with bundle.session(device=device, graph=graph) as session:
            created = time.perf_counter()
            given, results = device_tensors(gpu, bundle.manifest, session, inputs)
            first_start = time.perf_counter()
            session.run(given, outputs=results)
            first = time.perf_counter()
            enqueue = session.bind(given, results, gpu.stream)
            for _ in range(warmup):
                enqueue()
            gpu.synchronize()
            times = _in_a_row(gpu, enqueue, runs)
            enqueue_us, latency_ms = _one_by_one(gpu, enqueue, runs)
            found = profile_runs(bundle, session, given, results, runs) if profile else None
        return Measured(
            runs=times,
            session_create_ms=(created - create_start) * 1e3,
            first_run_ms=(first - first_start) * 1e3,
            profile=found,
            cuda=CudaFigures(
                device=device,
                name=gpu.name,
                arch=gpu.arch,
                driver=gpu.driver,
                graph=graph,
                context_ms=context_ms,
                enqueue_us_median=float(np.median(enqueue_us)),
                enqueue_us_p95=float(np.percentile(enqueue_us, 95)),
                latency_ms_median=float(np.median(latency_ms)),
                latency_ms_p95=float(np.percentile(latency_ms, 95)),
            ),
        )


def device_tensors(
    device: Device, manifest: Manifest, session: Session, inputs: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, DeviceArray], dict[str, DeviceArray]]:
    """Copy the inputs of the first entry to device memory, and allocate outputs for them there, by name."""
    shapes = session.output_shapes(inputs)
    given = {spec.name: device.upload(inputs[spec.name], spec.dtype) for spec in manifest.inputs}
    results = {spec.name: device.empty(shapes[spec.name], spec.dtype) for spec in manifest.outputs}
    return given, results


def _in_a_row(device: Device, enqueue: Callable[[], None], runs: int) -> NDArray[np.float64]:
    """Return milliseconds of back-to-back runs; an extra run comes first, so that each has a predecessor."""
    events = device.events(runs + 1)
    enqueue()
    for event in events[:-1]:
        device.record(event)
        enqueue()
    device.record(events[-1])
    device.synchronize()
    return np.array([device.elapsed_ms(*pair) for pair in itertools.pairwise(events)])


def _one_by_one(
    device: Device, enqueue: Callable[[], None], runs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return microseconds to enqueue each run, and milliseconds until it is complete."""
    enqueue_us, latency_ms = np.empty(runs), np.empty(runs)
    for index in range(runs):
        start = time.perf_counter()
        enqueue()
        enqueued = time.perf_counter()
        device.synchronize()
        latency_ms[index] = (time.perf_counter() - start) * 1e3
        enqueue_us[index] = (enqueued - start) * 1e6
    return enqueue_us, latency_ms

"""Compare bundles with torch on a GPU, side by side in one run: latency, load time, size, memory.

    python -m benchmarks.gpu.compare build/gpu -o gpu.json [--models bert,resnet50] [--compile]

``benchmarks.gpu.models`` has made the bundles, on a machine with no GPU. torch runs modules of the same architecture
and the same precision (transformers, torchvision) with random weights: eager, eager under a CUDA graph, with
``--compile`` torch.compile with and without one. All calls are timed by CUDA events, engines taking turns; inputs and
outputs are on the device. torch compiles for the one shape that is measured, also where a bundle takes several.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packager
from benchmarks.gpu.torch_models import Run, has_module, torch_runs
from benchmarks.harness.gpu import bundles, error, header, unpack

ROUNDS, RUNS = 7, 30


def measure(runs: dict[str, Run]) -> dict[str, dict[str, float]]:
    """Return for each engine the median and the spread of its time in ms, and the host's time to enqueue a run."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    hosts: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(10):
            run()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            events = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
            events[0].record()
            for index in range(RUNS):
                start = time.perf_counter()
                run()
                hosts[name].append((time.perf_counter() - start) * 1e6)
                events[index + 1].record()
            torch.cuda.synchronize()
            times[name] += [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    found = {}
    for name, values in times.items():
        low, median, high = (float(value) for value in np.percentile(values, (5, 50, 95)))
        found[name] = {"median_ms": median, "p5_ms": low, "p95_ms": high, "host_us": float(np.median(hosts[name]))}
    return found


def resident() -> int:
    """Return the bytes of device memory that are in use, by all."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def compare(folder: Path, name: str, work: Path, *, compiled: bool) -> dict[str, Any]:
    """Measure one model in all engines."""
    path, ((inputs, outputs), *_) = unpack(folder, name, work)
    before = resident()
    start = time.perf_counter()
    bundle = packager.load(path)
    session = bundle.session()
    first = session.run(inputs)
    found: dict[str, Any] = {
        "load_to_first_result_ms": (time.perf_counter() - start) * 1e3,
        "resident_bytes": resident() - before,
        "file_bytes": path.stat().st_size,
        "arena_bytes": bundle.manifest.arena_bytes,
        "error": max(error(first[key], want) for key, want in outputs.items()),
    }
    session.close()
    (array,) = inputs.values()
    given = {key: torch.from_numpy(value).cuda() for key, value in inputs.items()}
    results = {key: torch.empty_like(torch.from_numpy(value), device="cuda") for key, value in outputs.items()}
    with torch.no_grad(), bundle:
        stream = torch.cuda.current_stream()
        runs: dict[str, Run] = {}
        for label, mode in (("packager", "off"), ("packager, graph", "on")):
            session = bundle.session(graph=mode)
            runs[label] = functools.partial(session.run, given, outputs=results, stream=stream)
        if has_module(name):
            runs |= torch_runs(name, array, compiled=compiled)
        found["times"] = measure(runs)
        found["device_error"] = max(error(results[key].cpu().numpy(), want) for key, want in outputs.items())
    del runs
    torch.cuda.empty_cache()
    return found


def main() -> int:
    """Measure what the command line asks for and write it."""
    parser = argparse.ArgumentParser(description="Compare CUDA bundles with torch.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--work", type=Path, default=Path("/tmp/packager-gpu"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.cuda.init()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    report: dict[str, Any] = {**header("gpu"), **versions, "models": {}}
    for name in bundles(arguments.folder, arguments.models):
        try:
            found = compare(arguments.folder, name, arguments.work, compiled=arguments.compile)
        except packager.PackagerError as failure:
            found = {"failed": str(failure)}
        report["models"][name] = found
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
        print(name, json.dumps({key: value for key, value in found.items() if key != "times"}), flush=True)
        for engine, figures in found.get("times", {}).items():
            print(f"  {engine:24} {figures['median_ms']:8.3f} ms   host {figures['host_us']:7.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

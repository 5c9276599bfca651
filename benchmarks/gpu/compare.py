"""Compares bundles with torch on a GPU, side by side in one run: latency, load time, size, memory.

    python -m benchmarks.gpu.compare build/gpu -o gpu.json [--models bert,resnet50] [--compile]

``gpu/models.py build`` has made the bundles, on a machine with no GPU. torch runs modules of the same architecture and
the same precision (transformers, torchvision) with random weights: eager, eager under a CUDA graph, with ``--compile``
torch.compile with and without one. All calls are timed by CUDA events, engines taking turns; inputs and outputs are on
the device. torch compiles for the one shape that is measured, also where a bundle takes several.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packager
from benchmarks.gpu.check import error, unpack
from benchmarks.gpu.torch_models import Run, has_module, torch_runs

ROUNDS, RUNS = 7, 30


def bundle_runs(bundle: packager.Bundle, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Run]:
    """Return how to run a bundle with and without graphs, on torch's stream."""
    stream = torch.cuda.current_stream()
    runs: dict[str, Run] = {}
    for label, mode in (("packager", "off"), ("packager, graph", "on")):
        session = bundle.session(graph=mode)
        runs[label] = functools.partial(session.run, inputs, outputs=outputs, stream=stream)
    return runs


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
    return {
        name: {
            "median_ms": float(np.median(values)),
            "p5_ms": float(np.percentile(values, 5)),
            "p95_ms": float(np.percentile(values, 95)),
            "host_us": float(np.median(hosts[name])),
        }
        for name, values in times.items()
    }


def resident() -> int:
    """Return the bytes of device memory that are in use, by all."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def compare(folder: Path, name: str, work: Path, *, compiled: bool) -> dict[str, Any]:
    """Measure one model in all engines."""
    path, inputs, outputs = unpack(folder, name, work)
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
    device_inputs = {key: torch.from_numpy(value).cuda() for key, value in inputs.items()}
    device_outputs = {
        key: torch.empty(value.shape, dtype=torch.from_numpy(value).dtype, device="cuda")
        for key, value in outputs.items()
    }
    with torch.no_grad(), bundle:
        runs = bundle_runs(bundle, device_inputs, device_outputs)
        if has_module(name):
            runs |= torch_runs(name, array, compiled=compiled)
        found["times"] = measure(runs)
        for key, want in outputs.items():
            found["device_error"] = error(device_outputs[key].cpu().numpy(), want)
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
    arguments.work.mkdir(exist_ok=True)
    torch.cuda.init()
    names = (
        arguments.models.split(",")
        if arguments.models
        else sorted(p.name[:-6] for p in arguments.folder.glob("*.so.xz"))
    )
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", "-m", "benchmarks.gpu.compare", *sys.argv[1:]]),
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "models": {},
    }
    for name in names:
        try:
            found = compare(arguments.folder, name, arguments.work, compiled=arguments.compile)
        except packager.PackagerError as failure:
            found = {"failed": str(failure)}
        report["models"][name] = found
        arguments.output.write_text(json.dumps(report, indent=1))
        head = {key: value for key, value in found.items() if key != "times"}
        print(name, json.dumps(head), flush=True)
        for engine, figures in found.get("times", {}).items():
            print(f"  {engine:24} {figures['median_ms']:8.3f} ms   host {figures['host_us']:7.1f} us", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

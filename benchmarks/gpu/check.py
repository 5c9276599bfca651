"""Check bundles on a GPU against their references: ``benchmarks.gpu.models`` has made both on a machine without one.

    python -m benchmarks.gpu.check build/gpu -o check.json [--models digits,bert]

Needs a GPU, numpy and packager's deploy side. For each model: numbers from host arrays in every graph mode, equal bits
with graphs and without, four threads with a session each, and memory after 1,000 sessions.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.harness.gpu import bundles, run_each, unpack, worst
from benchmarks.harness.pairs import Arrays, Pairs

REPEATS = 3  # the first run of a shape calls the kernels, the second captures a CUDA graph, the third replays it


def check(path: Path, pairs: Pairs, tolerance: float) -> dict[str, Any]:
    """Run a bundle in all ways and return what was found."""
    found: dict[str, Any] = {"file_bytes": path.stat().st_size, "error": 0.0, "equal_bits": True}
    start = time.perf_counter()
    first: list[Arrays] = []
    with packager.load(path) as bundle:
        for mode in ("off", "auto", "on"):
            with bundle.session(graph=mode) as session:
                for _ in range(REPEATS):  # every size again after every other: a graph must not depend on the order
                    results = [session.run(inputs) for inputs, _ in pairs]
                    found.setdefault("load_to_first_results_ms", (time.perf_counter() - start) * 1e3)
                    first = first or results
                    found["equal_bits"] &= all(map(equal, results, first))
        found["error"] = worst(first, pairs)
        with ThreadPoolExecutor(4) as pool:
            found["threads_equal"] = all(pool.map(lambda _: in_thread(bundle, pairs[0][0], first[0]), range(4)))
    return found | {"ok": found["error"] < tolerance and found["equal_bits"] and found["threads_equal"]}


def equal(got: Arrays, want: Arrays) -> bool:
    """Return whether the bits are equal."""
    return all(np.array_equal(got[name], array, equal_nan=True) for name, array in want.items())


def in_thread(bundle: packager.Bundle, inputs: Arrays, want: Arrays) -> bool:
    """Run in a session of this thread."""
    with bundle.session() as session:
        return all(equal(session.run(inputs), want) for _ in range(20))


def cycles(path: Path, count: int) -> dict[str, Any]:
    """Open and close sessions, the bundle too every tenth time; return how memory has grown after the first ones."""

    def host_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    def device_mib() -> int:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])

    sizes = []
    for index in range(count // 10 + 1):
        with packager.load(path) as bundle:
            for _ in range(10):
                bundle.session().close()
        if index in (count // 50, count // 10):
            sizes.append((device_mib(), host_kib()))
    (device0, host0), (device1, host1) = sizes
    return {"ok": True, "cycles": count, "device_growth_mib": device1 - device0, "host_growth_kib": host1 - host0}


def main() -> int:
    """Check what the command line asks for; the exit code tells whether all is well."""
    parser = argparse.ArgumentParser(description="Check CUDA bundles on a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--work", type=Path, default=Path("/tmp/packager-gpu"))
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    names = bundles(arguments.folder, arguments.models)
    models = {name: unpack(arguments.folder, name, arguments.work) for name in names}
    cases = {name: functools.partial(check, *model, arguments.tolerance) for name, model in models.items()}
    if arguments.cycles:
        cases["cycles"] = functools.partial(cycles, models[names[0]][0], arguments.cycles)
    return run_each("gpu_check", cases, arguments.output)


if __name__ == "__main__":
    sys.exit(main())

"""Checks bundles on a GPU against their references: ``gpu/models.py build`` made both on a machine that has none.

    python -m benchmarks.gpu.check build/gpu [--models digits,bert] [-o check.json]

Needs a GPU, numpy and packager's deploy side. For each model: numbers from host arrays in every graph mode, equal bits
with graphs and without, four threads with a session each, and memory after 1,000 sessions.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import lzma
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import packager

Arrays = dict[str, np.ndarray]
QUERY = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]


def unpack(folder: Path, name: str, work: Path) -> tuple[Path, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return a bundle, its inputs and the expected outputs."""
    path = work / f"{name}.so"
    if not path.exists():
        with lzma.open(folder / f"{name}.so.xz") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
    arrays = np.load(folder / f"{name}.npz")
    split = {
        kind: {k.removeprefix(kind): arrays[k] for k in arrays if k.startswith(kind)} for kind in ("input:", "output:")
    }
    return path, split["input:"], split["output:"]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the relative error in the Euclidean norm; NaN never passes a comparison."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def check(path: Path, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """Run a bundle in all ways and return what was found."""
    found: dict[str, Any] = {"file_bytes": path.stat().st_size}
    start = time.perf_counter()
    with packager.load(path) as bundle:
        results: dict[str, list[dict[str, np.ndarray]]] = {}
        for mode in ("off", "auto", "on"):
            with bundle.session(graph=mode) as session:
                first = session.run(inputs)
                if mode == "off":
                    found["load_to_first_result_ms"] = (time.perf_counter() - start) * 1e3
                results[mode] = [first, *(session.run(inputs) for _ in range(3))]
        every = [result for runs in results.values() for result in runs]
        found["error"] = max(error(every[0][name], want) for name, want in outputs.items())
        found["equal_bits"] = all(
            np.array_equal(result[name], every[0][name], equal_nan=True) for result in every for name in outputs
        )
        found["threads_equal"] = in_threads(bundle, inputs, every[0])
    return found


def in_threads(bundle: packager.Bundle, inputs: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Run in four threads with a session each, at the same time."""
    good: list[bool] = []

    def work() -> None:
        with bundle.session() as session:
            for _ in range(20):
                result = session.run(inputs)
                good.append(all(np.array_equal(result[name], want) for name, want in expected.items()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(good) == 80 and all(good)


def together(paths: Sequence[Path], given: Sequence[tuple[Arrays, Arrays]], tolerance: float) -> bool:
    """Run several bundles and, if it is there, torch in turns in one process; return whether all is right."""
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    with contextlib.ExitStack() as stack:
        bundles = [stack.enter_context(packager.load(path)) for path in paths]
        for _ in range(5):
            for bundle, (inputs, outputs) in zip(bundles, given, strict=True):
                result = bundle.run(inputs)
                if not all(error(result[name], want) < tolerance for name, want in outputs.items()):
                    return False
                if torch is not None:
                    x = torch.eye(256, device="cuda")
                    if not torch.equal(x @ x, x):
                        return False
    return True


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
    return {"cycles": count, "device_growth_mib": device1 - device0, "host_growth_kib": host1 - host0}


def main() -> int:
    """Check what the command line asks for; the exit code tells whether all is well."""
    parser = argparse.ArgumentParser(description="Check CUDA bundles on a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--work", type=Path, default=Path("/tmp/packager-gpu"))
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True)
    names = (
        arguments.models.split(",")
        if arguments.models
        else sorted(p.name[:-6] for p in arguments.folder.glob("*.so.xz"))
    )
    found: dict[str, Any] = {}
    for name in names:
        path, inputs, outputs = unpack(arguments.folder, name, arguments.work)
        try:
            found[name] = check(path, inputs, outputs)
        except packager.PackagerError as failure:
            found[name] = {"failed": str(failure)}
        print(name, json.dumps(found[name]), flush=True)
    if len(names) > 1:
        given = [unpack(arguments.folder, name, arguments.work) for name in names]
        found["together"] = together([g[0] for g in given], [g[1:] for g in given], arguments.tolerance)
        print("together", found["together"], flush=True)
    if arguments.cycles:
        path, _, _ = unpack(arguments.folder, names[0], arguments.work)
        found["cycles"] = cycles(path, arguments.cycles)
        print("cycles", json.dumps(found["cycles"]), flush=True)
    if arguments.output:
        report = {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", "-m", "benchmarks.gpu.check", *sys.argv[1:]]),
            "gpu": subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.strip(),
            "models": found,
        }
        arguments.output.write_text(json.dumps(report, indent=1))
    bad = [n for n in names if "failed" in found[n] or not found[n]["error"] < arguments.tolerance]
    bad += ["together"] if found.get("together") is False else []
    return 1 if bad or any(not found[n].get("equal_bits") or not found[n].get("threads_equal") for n in names) else 0


if __name__ == "__main__":
    sys.exit(main())

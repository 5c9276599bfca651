"""Bundles with engines of TensorRT beside enqueueV3 alone, and what ``packager finalize`` makes of them.

    python -m benchmarks.gpu.zoo build -o build/zoo --only 'resnet50-*/tensorrt_fp16'    on a machine with no GPU
    python -m benchmarks.gpu.engines.runs build/zoo/*-tensorrt*.so --python python3.10 -o engines.json

Each bundle is finalized, engines built one after the other with nothing else on the GPU. Then a run with all engines in
the bundle and the same engines by enqueueV3 in a CUDA graph of a process of their own (worker.py) take turns:
``ratio`` is the first over the second, median of the turns. Needs torch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import packager
from benchmarks.gpu.cublas_torch import device_inputs, device_outputs, timed
from benchmarks.harness.gpu import header
from packager.bundle.gpu.engines import read_engines
from packager.deploy.finalize.finalizer import finalize

TURNS, MILLISECONDS = 40, 10.0
WORKER = Path(__file__).with_name("worker.py")


@contextmanager
def alone(bundle: Path, python: str) -> Iterator[Any]:
    """Yield a call that returns the microseconds of so many launches of a bundle's engines in their own process."""
    data = bundle.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, record in enumerate(read_engines(bundle)):
            paths.append(Path(folder) / f"{number}.engine")
            paths[-1].write_bytes(data[record.offset : record.offset + record.bytes])
        argv = [python, str(WORKER), *map(str, paths)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            given, got = process.stdin, process.stdout

            def launch(count: int) -> float:
                given.write(f"{count}\n")
                given.flush()
                return float(got.readline())

            if got.readline().strip() != "ready":
                raise RuntimeError(f"the worker ended with {process.wait()}")
            yield launch
            given.close()


def turns(path: Path, python: str) -> dict[str, float]:
    """Return the median microseconds of a run in a bundle and of its engines alone, and the median ratio."""
    stream = torch.cuda.current_stream()
    with packager.load(path) as bundle, bundle.session(graph="on") as session, alone(path, python) as launch:
        run = session.bind(device_inputs(bundle), device_outputs(bundle), stream)

        def in_bundle(count: int) -> float:
            return timed(run, count) * 1e3

        count = max(2, int(MILLISECONDS * 1e3 / max(in_bundle(10), launch(10))))
        times = np.array([[side(count) for side in _in_order(number, in_bundle, launch)] for number in range(TURNS)])
    times[1::2] = times[1::2, ::-1]
    inside, outside = np.median(times, axis=0)
    return {"bundle_us": inside, "enqueue_us": outside, "ratio": float(np.median(times[:, 0] / times[:, 1]))}


def _in_order(number: int, *sides: Any) -> tuple[Any, ...]:
    """Return who is first in this turn, and who is second."""
    return sides[::-1] if number % 2 else sides


def measure(path: Path, python: str, rounds: int) -> dict[str, Any]:
    """Finalize a bundle, and measure its engines."""
    chosen, engines = (path.with_suffix(f".{name}.so") for name in ("chosen", "engines"))
    found: dict[str, Any] = finalize(path, chosen, python=python, rounds=rounds).to_json()
    finalize(path, engines, python=python, use="engines")
    return found | turns(engines, python)


def main() -> int:
    """Measure bundles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the Python that has TensorRT")
    parser.add_argument("--rounds", type=int, default=60, help="turns of finalize")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    report = header("gpu_engines") | {"cases": {}}
    for path in given.bundles:
        try:
            found = measure(path, given.python, given.rounds)
        except Exception as failure:  # one that fails must not hide the others
            found = {"failed": f"{type(failure).__name__}: {str(failure)[-600:]}"}
        report["cases"][path.stem] = found
        print(path.stem, json.dumps(found), flush=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

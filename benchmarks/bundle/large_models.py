"""Building and loading decoders of up to 6 GB of float32 weights: memory, time, and numbers beside onnxruntime's.

    python -m benchmarks.bundle.large_models --workdir FOLDER

Each build is a process of its own, and so is each load. "peak" is the greatest resident set of the build, as the system
counts it (pages of the model's file that are mapped count too), over the size of the weights. "load" is
packager.load and one session in a process that has imported packager; "loaded" is what the process grows by
then, "run" by the first run, which reads all weights. Files are in the page cache as far as there is room.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bundle.decoder_model import shape_of, write_decoder
from benchmarks.harness.measure import ROOT, Report, Threshold, finish, make_parser

MOST_MEMORY = 2.0  # of a build, in sizes of the weights
MOST_LOADED_MB = 32
MOST_ERROR = 1e-3  # of the greatest output
ROOM = 3.2  # of the disk, in sizes of the weights: model, and a bundle in the making and at its place

LOAD = """
import json, sys, time
import numpy as np
import packager
packager.load  # is imported when it is first needed: before the measurement
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
tokens = {"tokens": np.array([5, 16383, 77, 0])}
before, start = resident(), time.perf_counter()
session = packager.load(sys.argv[1]).session()
loaded = time.perf_counter() - start
held = resident()
start = time.perf_counter()
result = next(iter(session.run(tokens).values()))
first = time.perf_counter() - start
np.save(sys.argv[2], result)
found = {"load_ms": loaded * 1e3, "loaded_mb": held - before, "first_run_s": first, "run_mb": resident() - held}
print(json.dumps(found))
"""
REFERENCE = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_prepacking", "1")
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
expected = session.run(None, {"tokens": np.array([5, 16383, 77, 0])})[0]
error = max(np.abs(np.load(path) - expected).max() for path in sys.argv[2:]) / np.abs(expected).max()
print(error)
"""


def main() -> int:
    """Measure and report."""
    parser = make_parser("big", "Memory and time of builds of large models.")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 2.3, 4.3, 6.0], help="of float32 weights")
    parser.add_argument("--width", type=int, default=2048, help="of the decoder; default: 2048")
    arguments = parser.parse_args()
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    figures, rows, thresholds = {}, [], []
    for size in arguments.gigabytes:
        shape = shape_of(size, arguments.width)
        free = shutil.disk_usage(arguments.workdir).free
        if free < ROOM * shape.parameters * 4:
            raise SystemExit(f"{arguments.workdir}: {free / 1e9:.0f} GB are free; {size} GB need {ROOM * size:.0f}")
        folder = arguments.workdir / "big"
        folder.mkdir()
        try:
            found = _measure(folder, write_decoder(folder, shape), shape.parameters * 4 / 1e9)
        finally:
            shutil.rmtree(folder)
        for form, values in found.items():
            name = f"{size:g} GB, {form}"
            figures[name] = values
            keys = ("weights_gb", "build_s", "peak_gb", "peak", "load_ms", "loaded_mb", "first_run_s", "run_mb")
            rows.append((name, *(f"{values[key]:.3g}" for key in keys)))
            thresholds.append(Threshold(f"memory of the build, {name}", values["peak"], MOST_MEMORY, "weights"))
            thresholds.append(Threshold(f"memory after load, {name}", values["loaded_mb"], MOST_LOADED_MB, "MB"))
            thresholds.append(Threshold(f"relative error, {name}", values["error"], MOST_ERROR, ""))
    report = Report(
        title="Decoders with random weights",
        header=("model", "GB", "build, s", "peak, GB", "peak / weights", "load, ms", "loaded, MB", "run, s", "run, MB"),
        rows=rows,
        figures=figures,
        thresholds=thresholds,
    )
    return finish(report, arguments)


def _measure(folder: Path, model: Path, weights: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for form in ("embedded", "external"):
        bundle = folder / f"{form}.so"
        start = time.perf_counter()
        peak = peak_of_build(model, bundle, form)
        taken = time.perf_counter() - start
        output = folder / f"{form}.npy"
        loaded = json.loads(_python(LOAD, bundle, output))
        error = float(_python(REFERENCE, model, output))
        found[form] = {"weights_gb": weights, "build_s": taken, "peak_gb": peak / 1e9, "peak": peak / 1e9 / weights}
        found[form] |= loaded | {"error": error}
        for file in (bundle, bundle.with_suffix(".safetensors")):
            file.unlink(missing_ok=True)
    return found


def peak_of_build(model: Path, bundle: Path, weights: str) -> int:
    """Build a bundle in a process of its own; return the greatest resident set of that and of its tools, in bytes.

    Raises CalledProcessError.
    """
    argv = [sys.executable, "-m", "packager", "build", str(model), "-o", str(bundle), "--weights", weights]
    folder = str(bundle.parent)  # of temporary files, too
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": folder, "XDG_CACHE_HOME": f"{folder}/cache"}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return usage.ru_maxrss * 1024


def _python(program: str, *arguments: Path) -> str:
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


if __name__ == "__main__":
    sys.exit(main())

"""Single operators through the cutlass backend: bundles are made here, and their numbers checked on a GPU.

    python -m benchmarks.cutlass.operators build -o build/gpu_operators [--only 'dense_*']    (packager[build,cutlass])
    python -m benchmarks.cutlass.operators run build/gpu_operators -o results.json            (an H100 or H200)

``build`` makes a model of one operator and what follows it for every case of ``cutlass/operator_cases.py``, and from
onnxruntime on the CPU in float32 what it should give; it fails where cutlass does not take as many partitions as the
case says. ``run`` computes each case with every kernel that its bundle ships, at every size of its symbolic dims, and
compares relative errors in the Euclidean norm with the case's tolerance.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.gpu.check import QUERY, error

ROOT = Path(__file__).parents[2]


def build(folder: Path, only: str, arch: str) -> int:
    """Make the bundles and references of the chosen cases; 1 if a model is not taken as its case says."""
    from benchmarks.cutlass.operator_cases import CASES, Case, reference

    folder.mkdir(parents=True, exist_ok=True)
    chosen: Sequence[Case] = [case for case in CASES if _matches(case.name, only)]
    record = folder / "cases.json"
    described: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    bad = []
    for case in chosen:
        model = folder / f"{case.name}.onnx"
        model.write_bytes(case.model().SerializeToString())
        path = packager.build(
            model,
            folder / f"{case.name}.so",
            targets=[f"cuda -arch={arch}", f"cutlass {case.options}".strip()],
            dims=case.dims,
            precision=case.precision,
        )
        manifest = packager.inspect(path).manifest
        # The last function of a partition stands for the work of all of them.
        calls = sum(entry.calls for kind, entry in manifest.primitives() if kind == "cutlass" and entry.flops)
        arrays: dict[str, np.ndarray] = {}
        for index, size in enumerate(case.sizes):
            inputs = case.inputs(size)
            outputs = reference(case, inputs)
            arrays |= {f"{index}:input:{name}": array for name, array in inputs.items()}
            arrays |= {f"{index}:output:{name}": array for name, array in outputs.items()}
        np.savez_compressed(folder / f"{case.name}.npz", **arrays)
        model.unlink()
        described[case.name] = {"tolerance": case.tolerance, "sizes": len(case.sizes), "calls": calls}
        print(f"{case.name}: {calls} calls of cutlass", flush=True)
        if calls != case.calls:
            bad.append(f"{case.name}: cutlass is called {calls} times, expected {case.calls}")
    record.write_text(json.dumps(described, indent=1) + "\n")
    print("\n".join(bad))
    return int(bool(bad))


def _matches(name: str, only: str) -> bool:
    return not only or any(fnmatchcase(name, pattern) for pattern in only.split(","))


def run(folder: Path, output: Path, only: str) -> int:
    """Check the cases on this machine's GPU and write what was found; 1 if a number is wrong."""
    cases = json.loads((folder / "cases.json").read_text())
    results: dict[str, Any] = {}
    for name, case in cases.items():
        if not _matches(name, only):
            continue
        try:
            results[name] = check(folder / name, case["sizes"], case["tolerance"])
        except packager.PackagerError as failure:
            results[name] = {"failed": str(failure), "ok": False}
        print("ok   " if results[name]["ok"] else "WRONG", name, json.dumps(results[name]), flush=True)
    report = {
        "schema_version": 1,
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.cutlass.operators run "
        + os.fspath(folder)
        + (f" --only {only}" if only else ""),
        "gpu": subprocess.run(QUERY, capture_output=True, text=True, check=True).stdout.strip(),
        "cases": results,
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in results.items())
    whole = json.dumps(report | {"cases": {}}, indent=1).replace('"cases": {}', '"cases": {\n' + lines + "\n }")
    output.write_text(whole + "\n")
    wrong = [name for name, found in results.items() if not found["ok"]]
    print(f"{len(results) - len(wrong)} of {len(results)} cases are right {' '.join(wrong)}")
    return int(bool(wrong))


def check(stem: Path, sizes: int, tolerance: float) -> dict[str, Any]:
    """Run a bundle with each of its kernels at each size; return their worst errors and whether all is well."""
    arrays = np.load(stem.with_suffix(".npz"))
    worst: dict[str, float] = {}
    with packager.load(stem.with_suffix(".so")) as bundle:
        candidates = {entry.symbol: entry.candidates for entry in bundle.manifest.selection}
        most = max((len(names) for names in candidates.values()), default=1)
        for number in range(most):
            selection = {symbol: names[min(number, len(names) - 1)] for symbol, names in candidates.items()}
            label = " ".join(dict.fromkeys(selection.values())) or "only"
            for mode in ("off", "on"):
                with bundle.session(graph=mode, selection=selection) as session:
                    for index in range(sizes):
                        found = session.run(_named(arrays, index, "input"))
                        for name, want in _named(arrays, index, "output").items():
                            worst[label] = _worse(worst.get(label, 0.0), error(found[name], want))
    return {"errors": worst, "ok": all(value <= tolerance for value in worst.values())}


def _worse(old: float, new: float) -> float:
    """Return the larger error; NaN, which compares with nothing, is the worst."""
    return old if math.isnan(old) or new <= old else new


def _named(arrays: Any, index: int, kind: str) -> dict[str, np.ndarray]:
    prefix = f"{index}:{kind}:"
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}


def main() -> int:
    """Build or run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    builder, runner = commands.add_parser("build"), commands.add_parser("run")
    builder.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "gpu_operators")
    builder.add_argument("--arch", default="sm_90a")
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path, required=True)
    for command in (builder, runner):
        command.add_argument("--only", default="", metavar="NAMES", help="patterns of cases' names: dense_*,conv_*")
    options = parser.parse_args()
    if options.command == "run":
        return run(options.folder, options.output, options.only)
    return build(options.output, options.only, options.arch)


if __name__ == "__main__":
    sys.exit(main())

"""ONNX files of others: those inside Python wheels, right and fast beside onnxruntime.

    pip download --no-deps -d wheels silero-vad magika nudenet rapidocr-onnxruntime
    python -m benchmarks.cpu.wheels wheels/*.whl -o wheels.json
    python -m benchmarks.cpu.wheels wheels/*.whl -o wheels.json --threads        # right alone, no times

Dims have the sizes of SIZES, inputs are random. ``difference`` is from onnxruntime's results, as a part of the greatest
value; where that is below 1e-3, results are all but zero, and it is of 1. The C program that measures knows float32
and int64; onnxruntime's C API refuses files that declare a wrong rank for an output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import packager
from benchmarks.cpu.compare import measure
from benchmarks.cpu.engines import Settings, compile_program
from benchmarks.harness.measure import ROOT, provenance, versions
from benchmarks.harness.turns import Model

# The size of a dim: patterns of the file's name, of the dim's or axis', and the size; the first that fits counts.
SIZES = (
    ("*", "*batch*", 1), ("*silero*", "state_1", 1), ("*silero*", "seq*", 576), ("*silero*", "1", 576),
    ("*", "N", 1), ("*", "0", 1),
    ("*melspec*", "samples", 16000), ("*rec*", "2", 48), ("*rec*", "3", 160), ("*cls*", "2", 48), ("*cls*", "3", 192),
    ("*common*", "3", 128), ("*", "frames", 60), ("*", "2", 320), ("*", "3", 320), ("*", "*", 32),
)  # fmt: skip
SMALL = 1e-3


def files(paths: list[Path], folder: Path) -> Iterator[Path]:
    """Yield ONNX files, those in wheels from a folder; each content once."""
    folder.mkdir(parents=True, exist_ok=True)
    known: set[str] = set()
    for path in paths:
        inside = zipfile.ZipFile(path) if path.suffix == ".whl" else None
        for name in [path.name] if inside is None else [name for name in inside.namelist() if name.endswith(".onnx")]:
            data = path.read_bytes() if inside is None else inside.read(name)
            digest = hashlib.sha256(data).hexdigest()
            if digest not in known:
                known.add(digest)
                written = folder / f"{path.name.split('-')[0]}-{Path(name).stem}-{digest[:6]}.onnx"
                written.write_bytes(data)
                yield written


def size_of(file: str, axis: int, dim: str) -> int:
    """Return the size of a dim; one without a name is called after its input and its axis."""
    return next(
        size
        for pattern, name, size in SIZES
        if fnmatchcase(file, pattern) and (name == str(axis) or fnmatchcase(dim, name))
    )


def inputs_of(path: Path) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return random inputs of a file, and the sizes of its dims."""
    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    dims: dict[str, int] = {}
    for value in graph.input:
        if value.name in constants:
            continue
        shape = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            named = dim.dim_param if any(map(str.isalnum, dim.dim_param)) else f"{value.name}_{axis}"
            shape.append(dim.dim_value if dim.dim_value > 0 else size_of(path.name, axis, named))
            if dim.dim_value <= 0:
                dims[named] = shape[-1]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name == "sr":
            feeds[value.name] = np.array(16000, dtype)
        elif "length" in value.name:
            feeds[value.name] = np.full(shape, 8, dtype)
        else:
            made = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 5, shape)
            feeds[value.name] = np.asarray(made).astype(dtype)
    return feeds, dims


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference, as a part of the greatest value. Raises ValueError for another shape."""
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape}, onnxruntime's is {want.shape}")
    if not want.size:
        return 0.0
    greatest = float(np.abs(want.astype(np.float64)).max())
    apart = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
    return apart / (greatest if greatest >= SMALL else 1.0)


def check(path: Path, workdir: Path, threads: list[int], plan: argparse.Namespace) -> dict[str, Any]:
    """Build a file, compare its results, and measure it."""
    feeds, dims = inputs_of(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    want = dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds), strict=True))
    bundle = packager.build(path, workdir / f"{path.stem}.so", dims=dims, golden=0)
    with packager.load(bundle) as loaded:
        known = {tensor.name for tensor in loaded.inputs}
        got = loaded.run({name: array for name, array in feeds.items() if name in known})
        found: dict[str, Any] = {"difference": max(difference(np.asarray(got[name]), want[name]) for name in want)}
    model = Model(path.stem, 1, path, feeds, want)
    engines = ("packager", "onnxruntime")
    records = [measure(model, count, engines, Settings(workdir, bundle=bundle), plan) for count in threads]
    return found | {"measured": records}


def main() -> int:
    """Check and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="wheels and ONNX files")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--workdir", type=Path, default=ROOT / "build" / "wheels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=float, default=0.12, help="seconds of a turn")
    parser.add_argument("--seconds", type=float, default=20, help="an engine sits out after them")
    plan = parser.parse_args()
    os.environ.setdefault("XDG_CACHE_HOME", str((plan.workdir / "cache").resolve()))
    onnxruntime.set_default_logger_severity(3)
    compile_program(plan.workdir)
    report: dict[str, Any] = provenance() | {"versions": versions(), "files": {}}
    for path in files(plan.paths, plan.workdir / "models"):
        try:
            found = check(path, plan.workdir, plan.threads, plan)
        except Exception as error:  # one that fails must not hide the others
            found = {"failed": f"{type(error).__name__}: {str(error)[:600]}"}
        report["files"][path.name] = found
        ratios = [record["over_packager"].get("onnxruntime", {}).get("median") for record in found.get("measured", ())]
        print(path.name, found.get("failed") or f"{found['difference']:.1e}", *ratios, flush=True)
        plan.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

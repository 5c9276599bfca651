"""Bundles whose products are cuBLASLt's, on a GPU: numbers, first runs, and times beside TVM's kernels and torch.

    python -m benchmarks.gpu.cublas build -o build/gpu_cublas [--arch sm_90a]     on a machine with no GPU
    python -m benchmarks.gpu.cublas run build/gpu_cublas -o gpu_cublas.json       where the GPU and the library are

``run`` compares with float32, runs with and without CUDA graphs bit by bit, times a process's first session and run,
outputs that alternate, and whole models in turns: the bundle's candidates of cuBLASLt, its alternative without the
library, and torch, which calls the same library, under a CUDA graph.
"""

from __future__ import annotations

import functools
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.gpu.cublas_cases import (
    LINEAR,
    MLP,
    PRODUCTS,
    linear_weights,
    mlp_weights,
    product_inputs,
    product_outputs,
    product_weights,
    save,
)
from benchmarks.harness.gpu import error, header, matches, two_commands
from benchmarks.harness.pairs import load_pairs, save_pairs

# What is built: a model of these, by which Targets after cuda.
BUNDLES = {
    "products": ("products", ["cublas"]),
    "linear": ("linear", ["cublas"]),
    "linear_kn": ("linear", ["cublas -weights=kn"]),
    "mlp": ("mlp", ["cublas"]),
    "mlp_kn": ("mlp", ["cublas -weights=kn"]),
    "mlp_cutlass": ("mlp", ["cutlass -candidates=1"]),
    "bert": ("bert", ["cublas"]),
}
COLD = ("linear", "mlp", "bert")


def pack(path: Path) -> None:
    """Compress a bundle; weights that repeat need a dictionary that holds them."""
    from benchmarks.gpu.models import FILTERS

    with path.open("rb") as source, lzma.open(f"{path}.xz", "wb", format=lzma.FORMAT_XZ, filters=FILTERS) as target:
        shutil.copyfileobj(source, target, 1 << 24)
    path.unlink()


def build(folder: Path, arch: str, only: str) -> None:
    """Build the bundles."""
    from benchmarks.gpu.models import bert

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        models: dict[str, tuple[Path, dict[str, Any]]] = {
            "products": (save(PRODUCTS, product_weights(), work / "products.onnx"), {"dims": {"n": (1, 40)}}),
            "linear": (save(LINEAR, linear_weights(), work / "linear.onnx"), {}),
            "mlp": (save(MLP, mlp_weights(), work / "mlp.onnx"), {}),
        }
        encoder = bert(work, layers=1, batch=8)
        models["bert"] = (encoder.path, {"precision": "fp16"})
        for bundle, (model, targets) in BUNDLES.items():
            if not matches(bundle, only):
                continue
            path, options = models[model]
            wanted = [f"cuda -arch={arch}", *targets]
            packager.build(path, folder / f"{bundle}.so", targets=wanted, golden=0, **options)
            pack(folder / f"{bundle}.so")
            if model == "bert":
                save_pairs(folder / f"{bundle}.npz", encoder.pairs)
            print(bundle, (folder / f"{bundle}.so.xz").stat().st_size, flush=True)


def unpack(folder: Path, work: Path, name: str) -> Path:
    """Return a bundle."""
    with lzma.open(folder / f"{name}.so.xz") as source, (work / f"{name}.so").open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 24)
    return work / f"{name}.so"


def numbers(path: Path) -> dict[str, Any]:
    """Compare with float64; runs with and without graphs, and of two sessions, must be equal bit by bit."""
    found: dict[str, Any] = {}
    with packager.load(path) as bundle:
        for rows in (17, 1, 40):
            inputs = product_inputs(rows)
            runs = []
            for mode in ("off", "on", "on"):
                with bundle.session(graph=mode) as session:
                    runs += [session.run(inputs) for _ in range(2)]
            wanted = product_outputs(inputs)
            same = all(np.array_equal(run[k].view(np.uint16), runs[0][k].view(np.uint16)) for run in runs for k in run)
            errors = {
                name: round(error(np.asarray(runs[0][name], np.float64), want), 6) for name, want in wanted.items()
            }
            found[f"{rows} rows"] = {"errors": errors, "equal bits": same}
    return found


def cold(path: Path) -> dict[str, float]:
    """Time the first session and run of this process, in ms."""
    import torch

    from benchmarks.gpu.cublas_torch import device_inputs, device_outputs

    found = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = call()
        torch.cuda.synchronize()
        found[name] = round((time.perf_counter() - start) * 1e3, 3)
        return value

    timed("context", lambda: torch.zeros(1, device="cuda"))  # CUDA itself, and torch's kernels
    bundle = timed("load", lambda: packager.load(path))
    session = timed("first session", bundle.session)
    inputs = device_inputs(bundle)
    outputs = device_outputs(bundle)
    stream = torch.cuda.current_stream()
    run = functools.partial(session.run, inputs, outputs=outputs, stream=stream)
    for name in ("first run", "second run", "third run", "fourth run"):
        timed(name, run)
    other = timed("second session", bundle.session)
    timed("its first run", functools.partial(other.run, inputs, outputs=outputs, stream=stream))
    return found


def selections(bundle: Any) -> dict[str, dict[str, str]]:
    """Return what to measure of a bundle: each rank of the library's answers for all products, and all without it."""
    manifest = bundle.manifest
    library = [entry for entry in manifest.selection if "cublaslt_0" in entry.candidates]
    ranks = max((len(entry.candidates) for entry in library), default=0)
    found = {f"answer {rank}": {entry.symbol: f"cublaslt_{rank}" for entry in library} for rank in range(ranks)}
    choices = manifest.placement.choices if manifest.placement else ()
    fallback = {c.name: c.alternatives[c.fallback].name for c in choices if c.fallback is not None}
    return {**found, **({"without the library": fallback} if fallback else {})} or {"": {}}


def times(model: str, names: list[str], paths: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Measure a model's bundles and torch in turns, and outputs that alternate."""
    import torch

    from benchmarks.gpu.cublas_torch import device_inputs, device_outputs, in_turns, torch_graph

    found: dict[str, Any] = {}
    runs: dict[str, Callable[[], Any]] = {}
    stream = torch.cuda.current_stream()
    given: dict[str, Any] = {}
    for name in names:
        bundle = packager.load(paths[name])
        if (folder / f"{name}.npz").exists():
            found["error"] = checked(bundle, folder / f"{name}.npz")
        given = given or device_inputs(bundle)
        outputs, others = device_outputs(bundle), device_outputs(bundle)
        for label, selection in selections(bundle).items():
            session = bundle.session(graph="on", selection=selection)
            runs[f"{name} {label}".strip()] = session.bind(given, outputs, stream)
        if len(selections(bundle)) > 1:
            runs[f"{name} answer 0, outputs alternate"] = alternating(bundle, given, outputs, others)
    direct = torch_graph(model, given)
    if direct is not None:
        runs["torch, CUDA graph"] = direct
    return {**found, "us": in_turns(runs)}


def checked(bundle: Any, pairs: Path) -> float:
    """Return the error of a bundle's outputs."""
    ((arrays, wanted), *_) = load_pairs(pairs)
    with bundle.session() as session:
        results = list(session.run(arrays).values())
    return max(error(np.asarray(got), want) for got, want in zip(results, wanted.values(), strict=True))


def alternating(bundle: Any, given: Any, outputs: Any, others: Any) -> Callable[[], None]:
    """Return a run that writes to two outputs in turn."""
    import torch

    session, turn = bundle.session(graph="on"), [0]
    stream = torch.cuda.current_stream()
    bound = [session.bind(given, to, stream) for to in (outputs, others)]

    def call() -> None:
        turn[0] ^= 1
        bound[turn[0]]()

    return call


def run(folder: Path, output: Path, only: str) -> None:
    """Measure everything and write it."""
    report = header("gpu_cublas")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        built = [one for one in BUNDLES if matches(one, only) and (folder / f"{one}.so.xz").exists()]
        paths = {one: unpack(folder, work, one) for one in built}
        steps: list[tuple[str, Callable[[], Any]]] = []
        if "products" in paths:
            steps.append(("numbers", lambda: numbers(paths["products"])))
        steps += [(f"cold {one}", functools.partial(in_process, paths[one])) for one in COLD if one in paths]
        for model in ("linear", "mlp", "bert"):
            names = [one for one in built if BUNDLES[one][0] == model]
            if names:
                steps.append((f"times {model}", functools.partial(times, model, names, paths, folder)))
        for step, call in steps:
            try:
                report[step] = call()
            except Exception as failure:  # one that fails must not hide the others
                report[step] = {"failed": f"{type(failure).__name__}: {failure}"}
            print(step, json.dumps(report[step]), flush=True)
            output.write_text(json.dumps(report, indent=1) + "\n")


def in_process(path: Path) -> Any:
    """Time first sessions in a process that has opened nothing."""
    command = [sys.executable, "-m", "benchmarks.gpu.cublas", "cold", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Build, run, or time a first session."""
    if sys.argv[1:2] == ["cold"]:
        print(json.dumps(cold(Path(sys.argv[2]))))
        return 0
    parser, _, _ = two_commands(__doc__, "gpu_cublas", "mlp*")
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.output, arguments.arch, arguments.only)
    else:
        run(arguments.folder, arguments.output, arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())

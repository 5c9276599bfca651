"""Bundles whose products are cuBLASLt's, on a GPU: numbers, first runs, and times beside TVM's kernels and torch.

    python -m benchmarks.gpu.cublas build -o build/gpu_cublas [--arch sm_90a]     on a machine with no GPU
    python -m benchmarks.gpu.cublas run build/gpu_cublas -o gpu_cublas.json       where the GPU and the library are

``run`` compares with float32, runs with and without CUDA graphs bit by bit, times a process's first session and run,
outputs that alternate, and whole models in turns: the bundle's candidates of cuBLASLt, its alternative without the
library, and torch, which calls the same library, under a CUDA graph.
"""

from __future__ import annotations

import functools
import itertools
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    quantized,
    save,
)
from benchmarks.harness.gpu import error, header, matches, obey, two_commands
from benchmarks.harness.pairs import Arrays, load_pairs, save_pairs
from packager.deploy.measure.bench_cuda import device_tensors
from packager.deploy.measure.cuda_memory import Device
from packager.deploy.measure.random_inputs import random_inputs

# What is built: a model of these, by which Targets after cuda.
BUNDLES = {
    "products": ("products", ["cublas"]),
    "linear": ("linear", ["cublas"]),
    "linear_kn": ("linear", ["cublas -weights=kn"]),
    "mlp": ("mlp", ["cublas"]),
    "mlp_kn": ("mlp", ["cublas -weights=kn"]),
    "mlp_cutlass": ("mlp", ["cutlass -candidates=1"]),
    "bert": ("bert", ["cublas"]),
    **{kind: (kind, ["cublas -operators=dense,int8,float8"]) for kind in ("int8", "float8_e4m3fn")},
    **{f"{kind}_cutlass": (kind, ["cutlass -candidates=1"]) for kind in ("int8", "float8_e4m3fn")},
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
        pairs = {"bert": encoder.pairs}
        for kind in ("int8", "float8_e4m3fn"):
            pairs[kind] = quantized(kind, work / f"{kind}.onnx")
            models[kind] = (work / f"{kind}.onnx", {"golden": None})  # a CPU takes minutes for 8-bit floats
        for bundle, (model, targets) in BUNDLES.items():
            if not matches(bundle, only):
                continue
            path, options = models[model]
            wanted = [f"cuda -arch={arch}", *targets]
            packager.build(path, folder / f"{bundle}.so", targets=wanted, **{"golden": 0, **options})
            pack(folder / f"{bundle}.so")
            if model in pairs:
                save_pairs(folder / f"{bundle}.npz", pairs[model])
            print(bundle, (folder / f"{bundle}.so.xz").stat().st_size, flush=True)


def unpack(folder: Path, work: Path, name: str) -> Path:
    """Return a bundle."""
    with lzma.open(folder / f"{name}.so.xz") as source, (work / f"{name}.so").open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 24)
    return work / f"{name}.so"


def numbers(path: Path) -> dict[str, Any]:
    """Compare with float64; runs with and without graphs, and of several threads, must be equal bit by bit."""
    found: dict[str, Any] = {}
    with packager.load(path) as bundle:

        def runs(inputs: Arrays, mode: str) -> list[Arrays]:
            with bundle.session(graph=mode) as session:
                return [session.run(inputs) for _ in range(3)]

        for rows in (17, 1, 40):
            inputs = product_inputs(rows)
            with ThreadPoolExecutor(4) as threads:
                several = list(threads.map(functools.partial(runs, inputs), ("off", "on", "auto", "on")))
            everything = [run for each in several for run in each]
            first = everything[0]
            same = all(
                np.array_equal(run[k].view(np.uint16), first[k].view(np.uint16)) for run in everything for k in run
            )
            wanted = product_outputs(inputs)
            errors = {name: round(error(np.asarray(first[name], np.float64), want), 6) for name, want in wanted.items()}
            found[f"{rows} rows"] = {"errors": errors, "equal bits": same}
    return found


def cold(path: Path) -> dict[str, float]:
    """Time the first session and run of a process that has CUDA, and has not opened the library, in ms."""
    found = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = call()
        found[name] = round((time.perf_counter() - start) * 1e3, 3)
        return value

    with timed("CUDA", lambda: Device(0)) as gpu, timed("load", lambda: packager.load(path)) as bundle:
        session = timed("first session", bundle.session)
        given, results = device_tensors(gpu, bundle.manifest, session, random_inputs(bundle.manifest, 0))
        run = functools.partial(session.run, given, outputs=results)
        for name in ("first run", "second run", "third run", "fourth run"):
            timed(name, run)
        with timed("second session", bundle.session) as other:
            timed("its first run", functools.partial(other.run, given, outputs=results))
        session.close()
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
    sessions: list[Any] = []
    stream = torch.cuda.current_stream()
    given: dict[str, Any] = {}
    bundles = [packager.load(paths[name]) for name in names]
    for name, bundle in zip(names, bundles, strict=True):
        if (folder / f"{name}.npz").exists():
            found.setdefault("errors", {})[name] = checked(bundle, folder / f"{name}.npz")
        given = given or device_inputs(bundle)
        for label, selection in selections(bundle).items():
            session = bundle.session(graph="on", selection=selection)
            sessions.append(session)  # what is bound does not keep it
            runs[f"{name} {label}".strip()] = session.bind(given, device_outputs(bundle), stream)
    found["equal after changes"] = changed(bundles[0])
    both = [device_outputs(bundles[0]) for _ in range(2)]
    session = bundles[0].session(graph="on")
    sessions.append(session)
    runs[f"{names[0]}, two outputs in turn"] = in_turn([session.bind(given, outputs, stream) for outputs in both])
    pairs = [(inputs, both[0]) for inputs in (given, device_inputs(bundles[0]))]
    runs[f"{names[0]}, two inputs in turn"] = in_turn([session.bind(*pair, stream) for pair in pairs])
    direct = torch_graph(model, given)
    if direct is not None:
        runs["torch, CUDA graph"] = direct
    return {**found, "us": in_turns(runs)}


def changed(bundle: Any) -> bool:
    """Whether a graph that is changed for other inputs and outputs computes what runs without graphs do."""
    import torch

    from benchmarks.gpu.cublas_torch import device_inputs, device_outputs

    given = [device_inputs(bundle) for _ in range(2)]
    results: dict[str, list[Any]] = {"on": [], "off": []}
    for mode, found in results.items():
        with bundle.session(graph=mode) as session:
            for turn in range(6):
                found.append(device_outputs(bundle))
                session.run(given[turn % 2], outputs=found[-1], stream=torch.cuda.current_stream())
            torch.cuda.synchronize()
    pairs = list(zip(results["on"], results["off"], strict=True))
    equal = all(torch.equal(one[name], other[name]) for one, other in pairs for name in one)
    first, second = (list(found.values()) for found in results["on"][:2])
    return equal and not all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def in_turn(calls: list[Callable[[], None]]) -> Callable[[], None]:
    """Return a call of the next of these: where their outputs differ the session's graph is changed each time."""
    following = itertools.cycle(calls)

    def call() -> None:
        next(following)()

    return call


def checked(bundle: Any, pairs: Path) -> float:
    """Return the error of a bundle's outputs."""
    ((arrays, wanted), *_) = load_pairs(pairs)
    with bundle.session() as session:
        results = list(session.run(arrays).values())
    return max(error(np.asarray(got), want) for got, want in zip(results, wanted.values(), strict=True))


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
        for model in ("linear", "mlp", "bert", "int8", "float8_e4m3fn"):
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


def in_process(path: Path, module: str = "benchmarks.gpu.cublas", step: str = "cold") -> Any:
    """Do a step, by default time first sessions, in a process that has opened nothing."""
    command = [sys.executable, "-m", module, step, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Build, run, or time a first session."""
    parser, _, _ = two_commands(__doc__, "gpu_cublas", "mlp*")
    return obey(parser, build, run, cold=cold)


if __name__ == "__main__":
    sys.exit(main())

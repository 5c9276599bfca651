"""Convolutions by cuDNN, by cutlass, and by both, on a GPU: numbers, first sessions, and times of whole models.

    python -m benchmarks.gpu.cudnn build -o build/gpu_cudnn [--arch sm_90a]     on a machine with no GPU
    python -m benchmarks.gpu.cudnn run build/gpu_cudnn -o gpu_cudnn.json        where the GPU and the library are

Models are those of the zoo, in half precision. ``build`` asks cuDNN for plans if it is installed. ``run`` compares with
float64, runs with and without CUDA graphs bit by bit, and times in turns: each Target alone, ``cutlass`` before
``cudnn``, TVM's kernels alone (the alternatives without the library), candidates of cuDNN, and what ``packager tune``
makes of the bundle with all alternatives.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import packager
from benchmarks.gpu.cublas import changed, checked, in_process, pack, unpack
from benchmarks.harness.gpu import header, matches, obey, tuned, two_commands
from benchmarks.harness.pairs import save_pairs

BATCHES = {"resnext50": 8, "r3d": 2, "dcgan": 8}
TARGETS = {
    "cudnn": ["cudnn"],
    "cutlass": ["cutlass"],
    "mixed": ["cutlass", "cudnn"],
    "trial": ["cutlass", "cudnn -operators=conv1d,conv2d,conv3d,conv_transpose,depthwise"],
}


def save(name: str, batch: int, folder: Path) -> Path:
    """Write a model of the zoo for a batch, and what float64 computes from random inputs. Returns its path."""
    from benchmarks.gpu.torch_models import repeat_weights
    from benchmarks.zoo.entry import noise
    from benchmarks.zoo.models import ZOO, export, instance
    from benchmarks.zoo.models import run as run_exactly

    module, single = instance(ZOO[name])
    repeat_weights(module)
    inputs = {key: noise(batch, *tensor.shape[1:]) for key, tensor in single.items()}
    path = folder / f"{name}.onnx"
    export(module, inputs, path)
    exact = run_exactly(module.double(), {key: tensor.double() for key, tensor in inputs.items()})
    save_pairs(path.with_suffix(".npz"), [({key: tensor.numpy() for key, tensor in inputs.items()}, {"output": exact})])
    return path


def build(folder: Path, arch: str, only: str) -> None:
    """Build a bundle of each model for each list of Targets, and write what cuDNN has planned."""
    folder.mkdir(parents=True, exist_ok=True)
    for model, batch in BATCHES.items():
        if not any(matches(f"{model}_{targets}", only) for targets in TARGETS):
            continue
        path = save(model, batch, folder)
        for name, targets in TARGETS.items():
            if not matches(f"{model}_{name}", only):
                continue
            bundle = folder / f"{model}_{name}.so"
            wanted = [f"cuda -arch={arch}", *targets]
            place = "trial" if name == "trial" else "greedy"
            packager.build(path, bundle, targets=wanted, precision="fp16", place=place)
            libraries = packager.inspect(bundle).manifest.requirements.libraries
            versions = [library.chosen_with for library in libraries if library.chosen_with]
            pack(bundle)
            print(bundle.stem, (folder / f"{bundle.name}.xz").stat().st_size, "plans of", *versions, flush=True)


def selections(bundle: Any) -> dict[str, dict[str, str]]:
    """Return what to measure of a bundle: each rank of the library's plans, and all without it."""
    manifest = bundle.manifest
    planned = [entry for entry in manifest.selection if "cudnn_0" in entry.candidates]
    ranks = max((len(entry.candidates) for entry in planned), default=0)
    found = {f"plan {rank}": {entry.symbol: f"cudnn_{rank}" for entry in planned} for rank in range(ranks)}
    choices = manifest.placement.choices if manifest.placement else ()
    fallback = {c.name: c.alternatives[c.fallback].name for c in choices if c.fallback is not None}
    return {**found, **({"without the library": fallback} if fallback else {})} or {"": {}}


def measure(model: str, paths: dict[str, Path], folder: Path, work: Path) -> dict[str, Any]:
    """Return errors and times of a model's bundles; runs are in turns."""
    import torch

    from benchmarks.gpu.cublas_torch import device_inputs, device_outputs, in_turns

    bundles = dict(paths)
    if "trial" in bundles:
        bundles["tuned"] = tuned(bundles.pop("trial"), work)
    found: dict[str, Any] = {"errors": {}, "equal after changes": {}}
    runs: dict[str, Callable[[], Any]] = {}
    stream = torch.cuda.current_stream()
    with ExitStack() as stack:
        for name, path in bundles.items():
            bundle = stack.enter_context(packager.load(path))
            found["errors"][name] = checked(bundle, folder / f"{model}.npz")
            found["equal after changes"][name] = changed(bundle)
            given = device_inputs(bundle)
            each = {"": {}} if name == "tuned" else selections(bundle)
            for label, selection in each.items():
                session = stack.enter_context(bundle.session(graph="on", selection=selection))
                runs[f"{name} {label}".strip()] = session.bind(given, device_outputs(bundle), stream)
        return {**found, "us": in_turns(runs)}


def run(folder: Path, output: Path, only: str) -> None:
    """Measure everything and write it."""
    report = header("gpu_cudnn")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for model in BATCHES:
            wanted = [one for one in TARGETS if matches(f"{model}_{one}", only)]
            built = [one for one in wanted if (folder / f"{model}_{one}.so.xz").exists()]
            paths = {one: unpack(folder, work, f"{model}_{one}") for one in built}
            if not paths:
                continue
            steps = {f"cold {model}": functools.partial(in_process, paths["cudnn"])} if "cudnn" in paths else {}
            for step, call in {**steps, model: functools.partial(measure, model, paths, folder, work)}.items():
                try:
                    report[step] = call()
                except Exception as failure:  # one that fails must not hide the others
                    report[step] = {"failed": f"{type(failure).__name__}: {failure}"}
                print(step, json.dumps(report[step]), flush=True)
                output.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Build or run."""
    parser, _, _ = two_commands(__doc__, "gpu_cudnn", "dcgan*")
    return obey(parser, build, run)


if __name__ == "__main__":
    sys.exit(main())

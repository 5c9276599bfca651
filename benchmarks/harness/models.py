"""The models that are measured, as ONNX files with one output, and as what each engine runs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from benchmarks.harness.measure import ROOT
from benchmarks.harness.turns import Tensor

if TYPE_CHECKING:
    from packager.bundle.manifest import TensorSpec

SAMPLES = ROOT / "samples"
# Batch 1 where the model leaves it open.
DIMS = {"digits": ("n=1",)}
MODEL_NAMES = ("relu", "digits", "squeezenet", "resnet50", "minilm")


@dataclass(frozen=True)
class Bundle:
    """A bundle and its tensors: extents from its manifest, names from the ONNX file."""

    path: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def make_model(name: str, workdir: Path) -> Path:
    """Return the ONNX file of one of ``MODEL_NAMES``; made in ``workdir`` unless it is there."""
    if name == "digits":
        return SAMPLES / "digits" / "digits.onnx"

    def write(path: Path) -> None:
        if name == "relu":
            onnx.save(_one_operator(), path)
        elif name == "minilm":
            _export_minilm(path)
        else:
            onnx.save(_sample("resnet50/make_model.py").make_light_model(f"light_{name}"), path)

    return _make(workdir / f"{name}.onnx", write)


def make_source(name: str, workdir: Path) -> Path:
    """Return the file that packager and TVM compile: torch.export's for MiniLM, else the ONNX file."""
    if name != "minilm":
        return make_model(name, workdir)
    return _make(workdir / f"{name}.pt2", _save_minilm)


def _make(path: Path, write: Callable[[Path], None]) -> Path:
    """Write a file unless it is there; never leaves half of one under its name."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_stem(f"{path.stem}-unfinished")
        write(unfinished)
        unfinished.rename(path)
    return path


def _one_operator() -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "relu", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _export_minilm(path: Path) -> None:
    """One sentence of 128 tokens, to ONNX. By the older exporter, which needs no package beyond torch."""
    import torch

    ids = torch.ones([1, 128], dtype=torch.int64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _sample("minilm/export.py").load_encoder(),
            (ids, ids.clone()),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
        )


def _save_minilm(path: Path) -> None:
    """One sentence of 128 tokens, by torch.export."""
    import torch

    sample = _sample("minilm/export.py")
    torch.export.save(sample.export_encoder(sample.load_encoder(), (1, 1), (128, 128)), path)


@cache
def _sample(path: str) -> ModuleType:
    """Import a sample; they are scripts, not a package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, SAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_packager(workdir: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with the cache of the benchmarks. Exits with its message."""
    environment = os.environ | {"XDG_CACHE_HOME": str((workdir / "cache").resolve()), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "packager", *map(str, arguments)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"packager {arguments[0]} failed\n{done.stderr}")
    return done


def build_arguments(name: str, workdir: Path, output: Path) -> list[str | Path]:
    """Return the arguments of ``packager build`` for a model."""
    dims = [argument for dim in DIMS.get(name, ()) for argument in ("--dim", dim)]
    return ["build", make_source(name, workdir), "-o", output, *dims]


def build_bundle(name: str, workdir: Path, *options: str | Path) -> Bundle:
    """Build a model with packager, from the cache if nothing has changed. Raises RuntimeError."""
    from packager.bundle.reader import inspect

    path = workdir / f"{name}.so"
    run_packager(workdir, *build_arguments(name, workdir, path), *options)
    manifest = inspect(path).manifest
    graph = onnx.load(make_model(name, workdir), load_external_data=False).graph
    initialized = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in initialized]
    return Bundle(
        path, _tensors(names, manifest.inputs), _tensors([value.name for value in graph.output], manifest.outputs)
    )


def _tensors(names: Sequence[str], specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, spec.dtype, tuple(int(extent) for extent in spec.shape))
        for name, spec in zip(names, specs, strict=True)
    )


def build_tvm(name: str, workdir: Path, bundle: Bundle, *, force: bool = False) -> Path:
    """Compile a model with TVM's default pipeline; again only if the model has changed, or when forced."""
    model = make_source(name, workdir)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()[:16]
    path = workdir / f"{name}-{digest}-tvm.so"
    if path.exists() and not force:
        return path
    shapes = [f"{tensor.name}={','.join(map(str, tensor.shape))}" for tensor in bundle.inputs]
    argv = [sys.executable, "-m", "benchmarks.bundle.tvm_pipeline", str(model), str(path), *shapes]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"TVM does not compile {name}\n{done.stderr}")
    return path

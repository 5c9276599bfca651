"""The engines of the CPU benchmark: each makes what it runs of a model, and says which process runs it.

Each engine has a process of its own, so that thread pools, allocators and flags of one are nothing to another.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.engines import compile_program, onnxruntime_engine, tvm_engine
from benchmarks.harness.measure import ROOT
from benchmarks.harness.models import run_packager
from benchmarks.harness.turns import LIMIT_S, EngineError, Model, Worker, level, reason

ON_PATH = {"PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Settings:
    """Where files lie, and what packager compiles for."""

    workdir: Path
    targets: tuple[str, ...]
    limit_s: float = LIMIT_S


def _compile(argv: Sequence[str | Path], settings: Settings) -> None:
    """Run a compiler. Raises EngineError."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, env=os.environ | ON_PATH, capture_output=True, text=True, check=False, timeout=settings.limit_s
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{Path(words[0]).name} took more than {settings.limit_s:.0f} s") from None
    if done.returncode:
        raise EngineError(reason(done.stderr) or f"{Path(words[0]).name} ended with {done.returncode}")


def _made(model: Model, settings: Settings, suffix: str, write: Callable[[Path], None]) -> Path:
    """Return a file made of a model, by the bytes of that; made unless it is there."""
    digest = hashlib.sha256(model.path.read_bytes()).hexdigest()[:16]
    path = settings.workdir / f"{model.path.stem}-{digest}{suffix}"
    if not path.exists():
        unfinished = path.with_stem(f"{path.stem}-unfinished")
        write(unfinished)
        unfinished.rename(path)
    return path


def _serve(settings: Settings, threads: int, engine: str) -> list[str | Path]:
    return [settings.workdir / "serve", "-t", str(threads), "TENSORS", engine]


def build(model: Model, workdir: Path, targets: Sequence[str]) -> Path:
    """Return the bundle of a model. Raises EngineError."""
    bundle = workdir / f"{model.path.stem}.so"
    try:
        run_packager(
            workdir, "build", model.path, "-o", bundle, *(part for target in targets for part in ("-t", target))
        )
    except RuntimeError as error:
        raise EngineError(reason(str(error))) from None
    return bundle


def packager(model: Model, threads: int, settings: Settings) -> Worker:
    """A bundle, through its C ABI."""
    bundle = build(model, settings.workdir, settings.targets)
    argv = _serve(settings, threads, f"packager={bundle.resolve()}")
    return Worker(model, argv, settings.workdir, limit_s=settings.limit_s)


def onnxruntime(model: Model, threads: int, settings: Settings) -> Worker:
    """onnxruntime with all optimizations, through its C API."""
    return Worker(
        model, _serve(settings, threads, onnxruntime_engine(model.path)), settings.workdir, {}, settings.limit_s
    )


def tvm(model: Model, threads: int, settings: Settings) -> Worker:
    """TVM's default pipeline and virtual machine, through the C API of tvm-ffi."""

    def write(path: Path) -> None:
        shapes = [f"{tensor.name}={','.join(map(str, tensor.shape))}" for tensor in model.tensors()[0]]
        _compile(
            [sys.executable, "-m", "benchmarks.bundle.tvm_pipeline", "--mcpu", level(), model.path, path, *shapes],
            settings,
        )

    module = _made(model, settings, "-tvm.so", write)
    return Worker(model, _serve(settings, threads, tvm_engine(module)), settings.workdir, limit_s=settings.limit_s)


def torch(model: Model, threads: int, settings: Settings) -> Worker:
    """torch.compile, weights frozen."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks.cpu.worker",
        "torch",
        model.name,
        model.path,
        "-t",
        str(threads),
        "TENSORS",
    ]
    environment = ON_PATH | {
        "TORCHINDUCTOR_CACHE_DIR": str((settings.workdir / "inductor").resolve()),
        "OMP_NUM_THREADS": str(threads),
    }
    return Worker(model, argv, settings.workdir, environment, settings.limit_s)


def iree(model: Model, threads: int, settings: Settings) -> Worker:
    """IREE's compiler for this CPU with all its optimizations, and its runtime through Python."""
    if not all(map(importlib.util.find_spec, ("iree", "iree.compiler", "iree.runtime"))):
        raise EngineError("not installed: pip install iree-base-compiler iree-base-runtime")
    tools = Path(sys.executable).parent

    def write(path: Path) -> None:
        imported = path.with_suffix(".mlir")
        _compile([tools / "iree-import-onnx", model.path, "-o", imported, "--opset-version", "17"], settings)
        options = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        options += ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
        options += ["--iree-llvmcpu-stack-allocation-limit=262144"]  # with less it refuses transformers
        _compile([tools / "iree-compile", imported, "-o", path, *options], settings)
        imported.unlink()

    module = _made(model, settings, ".vmfb", write)
    argv = [sys.executable, "-m", "benchmarks.cpu.worker", "iree", model.name, module, "-t", str(threads), "TENSORS"]
    return Worker(model, argv, settings.workdir, ON_PATH, settings.limit_s)


ENGINES: dict[str, Callable[[Model, int, Settings], Worker]] = {
    "packager": packager,
    "onnxruntime": onnxruntime,
    "tvm": tvm,
    "torch.compile": torch,
    "iree": iree,
}


def prepare(settings: Settings) -> None:
    """Compile the C program that engines run in."""
    compile_program(settings.workdir, "serve")

"""The engines of the CPU benchmarks: each compiles a model and returns what starts a process that runs it.

Each engine has a process of its own, so that thread pools, allocators and flags of one do not affect another.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness.measure import ROOT
from benchmarks.harness.turns import LIMIT_S, EngineError, Model, Worker, level, reason

Start = Callable[[], Worker]
SOURCES = ROOT / "benchmarks" / "c"
ON_PATH = {"PYTHONPATH": str(ROOT)}
WORKER = (sys.executable, "-m", "benchmarks.cpu.worker")


@dataclass(frozen=True)
class Settings:
    """Folder of models and bundles, the targets of packager, and a bundle that was built with them if there is one."""

    workdir: Path
    targets: tuple[str, ...] = ()
    limit_s: float = LIMIT_S
    bundle: Path | None = None


def compile_program(workdir: Path) -> None:
    """Compile the C program that runs engines: ``serve`` in ``workdir``."""
    workdir.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{ROOT / 'runtime_stub' / 'include'}", "-isystem", _package("tvm_ffi") / "include"]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    argv = ["gcc", *flags, *includes, *sorted(SOURCES.glob("*.c")), "-o", workdir / "serve", "-ldl", "-lm"]
    subprocess.run(argv, check=True)


def _package(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {name} is not installed; the benchmarks need packager[build,test]")
    return Path(spec.origin).parent


def run_packager(workdir: Path, *arguments: str | Path) -> str:
    """Run the command line in a process of its own, with a cache in ``workdir``. Returns its messages.

    Raises EngineError.
    """
    environment = os.environ | ON_PATH | {"XDG_CACHE_HOME": str((workdir / "cache").resolve())}
    argv = [sys.executable, "-m", "packager", *map(str, arguments)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(reason(done.stderr))
    return done.stderr


def build(model: Model, workdir: Path, *options: str | Path) -> Path:
    """Return the bundle of a model. Raises EngineError."""
    bundle = workdir / f"{model.path.stem}.so"
    run_packager(workdir, "build", model.path, "-o", bundle, *options)
    return bundle


def compile_tvm(model: Model, path: Path, limit_s: float = LIMIT_S) -> None:
    """Compile a model with TVM's default pipeline for the level of this CPU. Raises EngineError."""
    shapes = [f"{tensor.name}={','.join(map(str, tensor.shape))}" for tensor in model.tensors()[0]]
    argv = [sys.executable, "-m", "benchmarks.bundle.tvm_pipeline", "--mcpu", level(), model.path, path, *shapes]
    _compile(argv, limit_s)


def _compile(argv: Sequence[str | Path], limit_s: float) -> None:
    """Run a compiler. Raises EngineError."""
    words = [str(word) for word in argv]
    run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=limit_s)
    try:
        done = run(words, env=os.environ | ON_PATH)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{Path(words[0]).name} took more than {limit_s:.0f} s") from None
    if done.returncode:
        raise EngineError(reason(done.stderr) or f"{Path(words[0]).name} ended with {done.returncode}")


def _made(model: Model, settings: Settings, suffix: str, write: Callable[[Path], None]) -> Path:
    """Return a file compiled from a model; compiled again only if the model has changed."""
    digest = hashlib.sha256(model.path.read_bytes()).hexdigest()[:16]
    path = settings.workdir / f"{model.path.stem}-{digest}{suffix}"
    if not path.exists():
        unfinished = path.with_stem(f"{path.stem}-unfinished")
        write(unfinished)
        unfinished.rename(path)
    return path


def serve(model: Model, threads: int, settings: Settings, *engine: str | Path) -> Start:
    """Return what starts the C program with an engine: its name, then its arguments."""
    name, *arguments = engine
    text = f"{name}={','.join(str(argument) for argument in arguments)}"
    argv = [settings.workdir / "serve", "-t", str(threads), "TENSORS", text]
    return partial(Worker, model, argv, settings.workdir, limit_s=settings.limit_s)


def packager(model: Model, threads: int, settings: Settings) -> Start:
    """A bundle, through its C ABI."""
    targets = [part for target in settings.targets for part in ("-t", target)]
    bundle = settings.bundle or build(model, settings.workdir, *targets)
    return serve(model, threads, settings, "packager", bundle.resolve())


def onnxruntime_library() -> Path:
    """Return onnxruntime's shared library."""
    (library,) = (_package("onnxruntime") / "capi").glob("libonnxruntime.so.*")
    return library


def onnxruntime(model: Model, threads: int, settings: Settings) -> Start:
    """onnxruntime with all optimizations, through its C API."""
    return serve(model, threads, settings, "onnxruntime", onnxruntime_library(), model.path.resolve())


def tvm(model: Model, threads: int, settings: Settings) -> Start:
    """TVM's default pipeline and virtual machine, through the C API of tvm-ffi."""
    module = _made(model, settings, "-tvm.so", lambda path: compile_tvm(model, path, settings.limit_s))
    libraries = (_package("tvm_ffi") / "lib" / "libtvm_ffi.so", _package("tvm") / "lib" / "libtvm_runtime.so")
    return serve(model, threads, settings, "tvm", *libraries, module.resolve())


def torch(model: Model, threads: int, settings: Settings) -> Start:
    """torch.compile, weights frozen."""
    argv = [*WORKER, "torch", model.name, model.path, "-t", str(threads), "TENSORS"]
    cache = str((settings.workdir / "inductor").resolve())
    environment = ON_PATH | {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": str(threads)}
    return partial(Worker, model, argv, settings.workdir, environment, settings.limit_s)


def iree(model: Model, threads: int, settings: Settings) -> Start:
    """IREE's compiler for this CPU with all its optimizations, and its runtime through Python."""
    if not all(map(importlib.util.find_spec, ("iree", "iree.compiler", "iree.runtime"))):
        raise EngineError("not installed: pip install iree-base-compiler iree-base-runtime")
    tools = Path(sys.executable).parent

    def write(path: Path) -> None:
        imported = path.with_suffix(".mlir")
        _compile([tools / "iree-import-onnx", model.path, "-o", imported, "--opset-version", "17"], settings.limit_s)
        options = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        options += ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"]
        options += ["--iree-llvmcpu-stack-allocation-limit=262144"]  # with less it refuses transformers
        _compile([tools / "iree-compile", imported, "-o", path, *options], settings.limit_s)
        imported.unlink()

    module = _made(model, settings, ".vmfb", write)
    argv = [*WORKER, "iree", model.name, module, "-t", str(threads), "TENSORS"]
    return partial(Worker, model, argv, settings.workdir, ON_PATH, settings.limit_s)


def openvino(model: Model, threads: int, settings: Settings) -> Start:
    """OpenVINO's runtime through Python, tensors bound, latency first, no lower precision."""
    if importlib.util.find_spec("openvino") is None:
        raise EngineError("not installed: pip install openvino")
    argv = [*WORKER, "openvino", model.name, model.path, "-t", str(threads), "TENSORS"]
    return partial(Worker, model, argv, settings.workdir, ON_PATH, settings.limit_s)


ENGINES: dict[str, Callable[[Model, int, Settings], Start]] = {
    "packager": packager,
    "onnxruntime": onnxruntime,
    "tvm": tvm,
    "torch.compile": torch,
    "iree": iree,
    "openvino": openvino,
}

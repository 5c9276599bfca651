"""The engines of the CPU benchmark: each makes what it runs of a model, and says which process runs it.

Each engine has a process of its own, so that thread pools, allocators and flags of one are nothing to another. It loads
the model, writes its outputs for comparison, and then runs when it is told to; between its turns it is stopped by a
signal, so that no idle pool spins while another engine is measured.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cpu_models import Model
from engines import MAX_DIFFERENCE, compile_program, onnxruntime_engine, tvm_engine
from models import run_packager

HERE = Path(__file__).parent
# No compiler and no run of an engine takes longer; what does is reported.
LIMIT_S = 900.0
# A value at the edge of two steps of int8 is rounded up by one engine and down by another, layer for layer.
MAX_DIFFERENCES = {"resnet50_qdq": 0.05}


class EngineError(Exception):
    """Why an engine does not run a model."""


@dataclass(frozen=True)
class Settings:
    """Where files lie, and what packager compiles for."""

    workdir: Path
    targets: tuple[str, ...]
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Ready:
    """What an engine has done before its first turn; times in seconds, the difference as in ``engines.py``."""

    load_s: float
    first_s: float
    difference: float


class Worker:
    """A process that has loaded a model and waits, stopped, for its turns. Raises EngineError."""

    def __init__(
        self, model: Model, argv: Sequence[str | Path], settings: Settings, environment: Mapping[str, str]
    ) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="turns-", dir=settings.workdir))
        self._limit_s = settings.limit_s
        self._log = folder / "log.txt"
        inputs, outputs = model.tensors()
        tensors: list[str] = []
        files = []
        for index, tensor in enumerate(inputs):
            files.append(folder / f"input{index}.bin")
            files[-1].write_bytes(np.ascontiguousarray(model.inputs[tensor.name]).tobytes())
            tensors += ["-i", str(tensor), str(files[-1])]
        results = [folder / f"output{index}.bin" for index in range(len(outputs))]
        for tensor, path in zip(outputs, results, strict=True):
            tensors += ["-o", str(tensor), str(path)]
        words = [str(word) for word in argv]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [words[0], *(word for part in words[1:] for word in (tensors if part == "TENSORS" else [part]))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | environment,
                start_new_session=True,  # compilers that it starts end with it
            )
        try:
            word, load, first = self._answer().split()
            if word != "ready":
                raise EngineError(f"it printed {word!r}")
            differences = [
                _difference(np.frombuffer(path.read_bytes(), tensor.dtype), model.outputs[tensor.name].reshape(-1))
                for tensor, path in zip(outputs, results, strict=True)
            ]
            self.ready = Ready(int(load) / 1e9, int(first) / 1e9, max(differences, default=0.0))
            if not self.ready.difference < MAX_DIFFERENCES.get(model.name, MAX_DIFFERENCE):  # NaN too
                raise EngineError(
                    f"its outputs differ from onnxruntime's by {self.ready.difference:.2g} of the greatest"
                )
        except BaseException:
            self.close()
            raise
        self._stop()

    def keep_to(self, cores: set[int]) -> None:
        """Have it run on these cores only: a core may have less to give than another, for all engines then."""
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)

    def run(self, warmup: int, samples: int, calls: int) -> list[float]:
        """Take a turn: seconds for each of the samples of so many calls in a row."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(f"run {warmup} {samples} {calls}\n".encode())
        self._process.stdin.flush()
        taken = [int(word) / 1e9 for word in self._answer().split()]
        self._stop()
        return taken

    def close(self) -> None:
        """End the process, and those that it has started."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        shutil.rmtree(self._folder)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            raise EngineError(self._why()) from None

    def _stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], self._limit_s)
        if not readable:
            raise EngineError(f"no answer in {self._limit_s:.0f} s")
        line = self._process.stdout.readline().decode()
        if not line:
            raise EngineError(self._why())
        return line

    def _why(self) -> str:
        code = self._process.wait()
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return _reason(self._log.read_text(errors="replace")) or ended


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the greatest difference as a part of the greatest value; NaN if there is one."""
    if got.shape != expected.shape:
        return float("nan")
    return float(np.max(np.abs(got.astype(np.float64) - expected)) / np.max(np.abs(expected)))


def _reason(text: str) -> str:
    """Return what says most in an output, without folders: a compiler's first error, Python's last, or the last line
    of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "this is a bug in packager" not in line]
    of_compiler = [line for line in lines if ": error:" in line]
    errors = [line for line in lines if "rror:" in line]
    line = (of_compiler[:1] or errors[-1:] or lines[-1:] or [""])[0]
    return re.sub(r"(?<!\S)/\S*/", "", line)[:300]


def _compile(argv: Sequence[str | Path], settings: Settings) -> None:
    """Run a compiler. Raises EngineError."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=settings.limit_s)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{Path(words[0]).name} took more than {settings.limit_s:.0f} s") from None
    if done.returncode:
        raise EngineError(_reason(done.stderr) or f"{Path(words[0]).name} ended with {done.returncode}")


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


def packager(model: Model, threads: int, settings: Settings) -> Worker:
    """A bundle, through its C ABI."""
    bundle = settings.workdir / f"{model.path.stem}.so"
    targets = [part for target in settings.targets for part in ("-t", target)]
    try:
        run_packager(settings.workdir, "build", model.path, "-o", bundle, *targets)
    except RuntimeError as error:
        raise EngineError(_reason(str(error))) from None
    return Worker(model, _serve(settings, threads, f"packager={bundle.resolve()}"), settings, {})


def onnxruntime(model: Model, threads: int, settings: Settings) -> Worker:
    """onnxruntime with all optimisations, through its C API."""
    return Worker(model, _serve(settings, threads, onnxruntime_engine(model.path)), settings, {})


def tvm(model: Model, threads: int, settings: Settings) -> Worker:
    """TVM's default pipeline and virtual machine, through the C API of tvm-ffi."""

    def write(path: Path) -> None:
        shapes = [f"{tensor.name}={','.join(map(str, tensor.shape))}" for tensor in model.tensors()[0]]
        _compile([sys.executable, HERE / "build_tvm.py", "--mcpu", level(), model.path, path, *shapes], settings)

    module = _made(model, settings, "-tvm.so", write)
    return Worker(model, _serve(settings, threads, tvm_engine(module)), settings, {})


def torch(model: Model, threads: int, settings: Settings) -> Worker:
    """torch.compile, weights frozen."""
    argv = [sys.executable, HERE / "cpu_worker.py", "torch", model.name, model.path, "-t", str(threads), "TENSORS"]
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str((settings.workdir / "inductor").resolve()),
        "OMP_NUM_THREADS": str(threads),
    }
    return Worker(model, argv, settings, environment)


def iree(model: Model, threads: int, settings: Settings) -> Worker:
    """IREE's compiler for this CPU with all its optimisations, and its runtime through Python."""
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
    argv = [sys.executable, HERE / "cpu_worker.py", "iree", model.name, module, "-t", str(threads), "TENSORS"]
    return Worker(model, argv, settings, {})


def some_cores(count: int) -> set[int]:
    """Return the last ones of the machine's cores that this process may use."""
    return set(sorted(os.sched_getaffinity(0))[-count:])


def level() -> str:
    """Return the level of x86-64 that this CPU has, as far as engines are compiled for it."""
    flags = Path("/proc/cpuinfo").read_text()
    return "x86-64-v4" if "avx512vl" in flags else "x86-64-v3"


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


def timed(worker: Worker, block_s: float) -> tuple[float, int]:
    """Take a turn of about ``block_s``: seconds for a call, the median of the turn, and how many calls there were."""
    (probe,) = worker.run(0, 1, 1)
    if probe > block_s / 4:
        samples = worker.run(0, max(1, round((block_s - probe) / probe)), 1) if probe < block_s else [probe]
        return float(np.median(samples)), len(samples)
    calls = max(1, round(50e-6 / probe))
    count = max(3, min(200, round(block_s / (probe * calls))))
    samples = worker.run(max(1, min(1000, round(2e-3 / probe))), count, calls)
    return float(np.median(samples)) / calls, count * calls

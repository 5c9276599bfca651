"""What is measured in turns: a model and its tensors, and a process that runs it when it is told to.

It loads the model, writes its outputs for comparison, and is stopped by a signal between its turns, so that no idle
pool spins while another is measured. This needs numpy only, to run where bundles are carried to.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.pairs import Arrays

# The engines agree to this part of the greatest output, or what is measured is not the same thing.
MAX_DIFFERENCE = 1e-3
# No compiler and no run of an engine takes longer; what does is reported.
LIMIT_S = 900.0
# A value at the edge of two steps of int8 is rounded up by one engine and down by another, layer for layer.
MAX_DIFFERENCES = {"resnet50_qdq": 0.05}


class EngineError(Exception):
    """Why an engine does not run a model."""


@dataclass(frozen=True)
class Tensor:
    """A model input or output of a static shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}:{','.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Model:
    """An ONNX file of static shapes with one output, inputs, and the outputs that onnxruntime computes from them."""

    name: str
    batch: int
    path: Path
    inputs: Arrays
    outputs: Arrays

    def tensors(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return inputs and outputs as the C programs take them."""
        given, results = (
            tuple(Tensor(name, array.dtype.name, array.shape) for name, array in arrays.items())
            for arrays in (self.inputs, self.outputs)
        )
        return given, results


@dataclass(frozen=True)
class Ready:
    """Seconds to open the engine's library, to load the model and to run it first; the difference of its outputs."""

    library_s: float
    load_s: float
    first_s: float
    difference: float


class Worker:
    """A process that has loaded a model and waits, stopped, for its turns. Raises EngineError."""

    def __init__(
        self,
        model: Model,
        argv: Sequence[str | Path],
        workdir: Path,
        environment: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="turns-", dir=workdir))
        self._limit_s = limit_s
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
                env=os.environ | (environment or {}),
                start_new_session=True,  # compilers that it starts end with it
            )
        try:
            word, *phases = self._answer().split()
            if word != "ready":
                raise EngineError(f"it printed {word!r}")
            differences = [
                _difference(np.frombuffer(path.read_bytes(), tensor.dtype), model.outputs[tensor.name].reshape(-1))
                for tensor, path in zip(outputs, results, strict=True)
            ]
            self.ready = Ready(*(int(phase) / 1e9 for phase in phases), max(differences, default=0.0))
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
        return reason(self._log.read_text(errors="replace")) or ended


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the greatest difference as a part of the greatest value; NaN if there is one."""
    if got.shape != expected.shape:
        return float("nan")
    return float(np.max(np.abs(got.astype(np.float64) - expected)) / np.max(np.abs(expected)))


def reason(text: str) -> str:
    """Return what says most in an output, without folders: a compiler's first error, Python's last, or the last line
    of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "this is a bug in packager" not in line]
    of_compiler = [line for line in lines if ": error:" in line]
    errors = [line for line in lines if "rror:" in line]
    line = (of_compiler[:1] or errors[-1:] or lines[-1:] or [""])[0]
    return re.sub(r"(?<!\S)/\S*/", "", line)[:300]


def some_cores(count: int) -> set[int]:
    """Return the last ones of the machine's cores that this process may use."""
    return set(sorted(os.sched_getaffinity(0))[-count:])


def level() -> str:
    """Return the level of x86-64 that this CPU has, as far as engines are compiled for it."""
    flags = Path("/proc/cpuinfo").read_text()
    return "x86-64-v4" if "avx512vl" in flags else "x86-64-v3"


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


@contextmanager
def started(
    starts: Mapping[str, Callable[[], Worker]], failed: dict[str, str] | None = None
) -> Iterator[dict[str, Worker]]:
    """Start workers, and end them all. What raises EngineError is left out if ``failed`` is there to say why."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, start in starts.items():
            try:
                workers[name] = start()
            except EngineError as error:
                if failed is None:
                    raise
                failed[name] = str(error)
            else:
                stack.callback(workers[name].close)
        yield workers


def in_order(workers: Mapping[str, Worker], index: int) -> list[str]:
    """Return whose turn it is, one after the other, in a round: every other round goes backwards."""
    return list(workers)[:: 1 if index % 2 == 0 else -1]


def take_turns(workers: Mapping[str, Worker], cores: set[int], rounds: int, block_s: float) -> dict[str, list[float]]:
    """Return for each worker the seconds of a call in each round, all on the same cores. Raises EngineError."""
    for worker in workers.values():
        worker.keep_to(cores)
    times: dict[str, list[float]] = {name: [] for name in workers}
    for index in range(rounds):
        for name in in_order(workers, index):
            times[name].append(timed(workers[name], block_s)[0])
    return times

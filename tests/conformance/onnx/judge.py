"""Build and run cases in processes of their own, and say of each whether packager computes it right."""

from __future__ import annotations

import json
import os
import pickle
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.onnx.cases import Case, frozen_inputs

BUILD_SECONDS = 60.0
RUN_SECONDS = 30.0
START_SECONDS = 60.0
PATIENCE = 20
COUNT = ".count"
PACKAGE = "tests.conformance.onnx"
# The runner grants bfloat16 two units in the last place, as the standard's reference rounds after each step. The same
# holds for float16: sums in float32, as ours are, are nearer to the exact result than it.
TWO_ULPS = {"bfloat16": 2**-6, "float16": 2**-9}


@dataclass(frozen=True)
class Verdict:
    """What became of a case: ``right``, ``refused`` with the error, ``wrong``, or ``failed``: a crash, a hang, a bug.

    ``frozen`` are the inputs that had to be constants.
    """

    name: str
    status: str
    message: str = ""
    frozen: tuple[str, ...] = ()


class Server:
    """A process that answers lines of JSON; it is started anew after a crash or a hang."""

    def __init__(self, module: str, seconds: float, memory_bytes: int = 0) -> None:
        self.module, self.seconds, self.memory_bytes = module, seconds, memory_bytes
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, or a failure that says how the process ended."""
        process = self.process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = _line(process, self.seconds)
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        ended = f"{self.module} ended: {process.wait()}" if line is not None else f"no answer within {self.seconds} s"
        self.close()
        return {"status": "failed", "message": ended}

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"{PACKAGE}.{self.module}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        if self.memory_bytes:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
        assert _line(process, START_SECONDS) == "ready\n", f"{self.module} does not start"
        return process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _line(process: subprocess.Popen[str], seconds: float) -> str | None:
    """Return the next line of a process, "" at its end, None if it says nothing in time.

    The time is its own on the CPU, so that a machine with other work to do makes no difference; one that sleeps instead
    has ``PATIENCE`` times as long.
    """
    deadline, limit = time.monotonic() + PATIENCE * seconds, _cpu_seconds(process.pid) + seconds
    while time.monotonic() < deadline and _cpu_seconds(process.pid) < limit:
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if ready and process.stdout is not None:
            return process.stdout.readline()
    return None


def _cpu_seconds(pid: int) -> float:
    """Return the time that a process and its children that have ended have had; proc(5), fields 14 to 17."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Judge:
    """Judges cases for a list of Targets."""

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self.targets = list(targets)
        self.builder, self.runner = Server("builder", BUILD_SECONDS), Server("runner", RUN_SECONDS)

    def judge(self, case: Case) -> Verdict:
        """Return what becomes of a case; one that is refused is tried with its parameters frozen."""
        verdict = self._judge(case, ())
        frozen = frozen_inputs(case)
        if verdict.status == "refused" and frozen:
            again = self._judge(case, frozen)
            verdict = again
        return verdict

    def _judge(self, case: Case, frozen: tuple[str, ...]) -> Verdict:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            case.save(folder)
            request = {"folder": temporary, "freeze": frozen, "targets": self.targets}
            answer = self.builder.ask(request)
            if answer["status"] == "built":
                answer = self.runner.ask(request)
            if answer["status"] != "ran":
                text = answer["message"] + (f": {answer['detail']}" if answer.get("detail") else "")
                status = "failed" if answer["status"] == "unfit" else answer["status"]
                return Verdict(case.name, status, text, frozen)
            made = pickle.loads((folder / "outputs.pickle").read_bytes())
        problem = difference(case, used_parts(case, made))
        return Verdict(case.name, "wrong" if problem else "right", problem, frozen)

    def close(self) -> None:
        """End the processes."""
        self.builder.close()
        self.runner.close()


def used_parts(case: Case, made: Mapping[str, Any]) -> list[Any]:
    """Return a model's outputs without what is beyond the counts of those that have one (docs/onnx.md).

    An output with a count may be longer than what is expected along one axis, where it is zero beyond the count.
    """
    sized = {name for name in made if f"{name}{COUNT}" in made}
    plain = [name for name in made if name.removesuffix(COUNT) not in sized or name in sized]
    parts = []
    for number, name in enumerate(plain):
        array = made[name]
        if name in sized and number < len(case.outputs):
            count, want = int(made[f"{name}{COUNT}"]), np.asarray(case.outputs[number]).shape
            axes = [axis for axis in range(array.ndim) if array.ndim == len(want) and array.shape[axis] != want[axis]]
            if len(axes) == 1:
                used, rest = np.split(array, [count], axes[0])
                array = used if not rest.any() else array
            elif count not in array.shape:
                array = array[None][:0]  # the count is wrong: no shape fits
        parts.append(array)
    return parts


def difference(case: Case, made: Sequence[Any]) -> str:
    """Return how outputs differ from what they should be, "" if they do not: shapes, types, values within tolerance.

    The comparison is that of ``onnx.backend.test.runner``.
    """
    if len(made) != len(case.outputs):
        return f"{len(made)} outputs, expected {len(case.outputs)}"
    for number, (have, expected) in enumerate(zip(made, case.outputs, strict=True)):
        want = np.asarray(expected)
        if have.shape != want.shape:
            return f"output {number} has shape {list(have.shape)}, expected {list(want.shape)}"
        if have.dtype != want.dtype:
            return f"output {number} is {have.dtype}, expected {want.dtype}"
        exact = want.dtype.kind in "biu"
        left, right = (have, want) if exact else (have.astype(np.float64), want.astype(np.float64))
        rtol, atol = (0.0, 0.0) if exact else (max(case.rtol, TWO_ULPS.get(want.dtype.name, 0)), case.atol)
        if not np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=not exact):
            with np.errstate(all="ignore"):
                worst = np.nanmax(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0)
            return f"output {number} is off by {worst:.3g}"
    return ""


def judge_all(
    cases: Sequence[Case], targets: Sequence[str], tell: Callable[[Verdict], None], lanes: int
) -> dict[str, Verdict]:
    """Judge cases in several lanes at once."""
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    judges: SimpleQueue[Judge] = SimpleQueue()
    made = [Judge(targets) for _ in range(lanes)]
    for judge in made:
        judges.put(judge)

    def one(case: Case) -> Verdict:
        judge = judges.get()
        try:
            verdict = judge.judge(case)
        finally:
            judges.put(judge)
        tell(verdict)
        return verdict

    try:
        with ThreadPoolExecutor(lanes) as pool:
            return {verdict.name: verdict for verdict in pool.map(one, cases)}
    finally:
        for judge in made:
            judge.close()

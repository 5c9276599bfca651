"""Build and run cases in processes of their own, and say of each whether packager computes it right."""

from __future__ import annotations

import json
import pickle
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.onnx.cases import Case, frozen_inputs

BUILD_SECONDS = 120.0
RUN_SECONDS = 60.0
PACKAGE = "tests.conformance.onnx"


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

    def __init__(self, module: str, seconds: float) -> None:
        self.module, self.seconds = module, seconds
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, or a failure that says how the process ended."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{PACKAGE}.{self.module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], self.seconds)
        line = self.process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        how = f"no answer within {self.seconds:.0f} s" if not ready else f"{self.module} ended: {self.process.wait()}"
        self.close()
        return {"status": "failed", "message": how}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


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
            verdict = again if again.status != "refused" else verdict
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
                return Verdict(case.name, answer["status"], text, frozen)
            made = pickle.loads((folder / "outputs.pickle").read_bytes())
        problem = difference(case, made)
        return Verdict(case.name, "wrong" if problem else "right", problem, frozen)

    def close(self) -> None:
        """End the processes."""
        self.builder.close()
        self.runner.close()


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
        rtol, atol = (0.0, 0.0) if exact else (case.rtol, case.atol)
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

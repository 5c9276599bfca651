"""Build and run cases in processes of their own, and say of each whether packager computes it right."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.onnx.cases import Case, frozen_inputs
from tests.conformance.onnx.compare import difference
from tests.conformance.server import Server

BUILD_SECONDS = 60.0
RUN_SECONDS = 30.0


@dataclass(frozen=True)
class Verdict:
    """What became of a case: ``right``, ``refused`` with the error, ``wrong``, or ``failed``: a crash, a hang, a bug.

    ``frozen`` are the inputs that had to be constants.
    """

    name: str
    status: str
    message: str = ""
    frozen: tuple[str, ...] = ()


class Judge:
    """Judges cases for a list of Targets."""

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self.targets = list(targets)
        self.cache = tempfile.TemporaryDirectory()  # empty at first: it is the runtime that all cases share
        self.builder, self.runner = (
            Server("tests.conformance.onnx.builder", BUILD_SECONDS),
            Server("tests.conformance.onnx.runner", RUN_SECONDS),
        )

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
            request = {"folder": temporary, "freeze": frozen, "targets": self.targets, "cache": self.cache.name}
            answer = self.builder.ask(request)
            if answer["status"] == "built":
                answer = self.runner.ask(request)
            if answer["status"] != "ran":
                text = answer["message"] + (f": {answer['detail']}" if answer.get("detail") else "")
                status = "failed" if answer["status"] == "unfit" else answer["status"]
                return Verdict(case.name, status, text, frozen)
            made = pickle.loads((folder / "outputs.pickle").read_bytes())
        problem = difference(case, [*made.values()])
        return Verdict(case.name, "wrong" if problem else "right", problem, frozen)

    def close(self) -> None:
        """End the processes."""
        self.builder.close()
        self.runner.close()
        self.cache.cleanup()


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

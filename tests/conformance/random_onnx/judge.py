"""Build, run and compare random models, each step in a process of its own."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.server import Server

MAKE_SECONDS = 60.0
ATTEMPTS = 4  # onnxruntime ends the process for some nodes
BUILD_SECONDS = 60.0
RUN_SECONDS = 20.0
TOLERANCE = 2e-4  # of the greatest magnitude in an output, if its values came through no shorter type
LARGE = 1e6  # what is larger gives no measure for what is small


@dataclass(frozen=True)
class Verdict:
    """What became of a seed: ``right``, ``refused`` with the error, ``wrong``, ``failed``: a crash, a hang, a bug; or
    ``none`` if onnxruntime ended the process that drew it."""

    seed: int
    status: str
    message: str = ""


def difference(made: dict[str, Any], expected: Iterable[Any], coarse: Iterable[float]) -> str:
    """Return how outputs differ from what they should be, "" if they do not.

    Integers and truth values are equal. Floats are not further apart than a part of the greatest magnitude in a tensor.
    """
    for (name, have), want, least in zip(made.items(), expected, coarse, strict=True):
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            return f"{name} is {have.dtype}{list(have.shape)}, expected {want.dtype}{list(want.shape)}"
        tolerance = max(TOLERANCE, least) if want.dtype.kind == "f" else 0.0
        left, right = (have, want) if want.dtype.kind in "biu" else (have.astype(np.float64), want.astype(np.float64))
        finite = np.abs(right[np.isfinite(right)]) if want.dtype.kind == "f" else np.zeros(0)
        scale = max(1e-3, float(np.max(finite, initial=0.0, where=finite < LARGE)))
        exact = want.dtype.kind != "f"
        if not np.allclose(left, right, tolerance, tolerance * scale * (not exact), equal_nan=not exact):
            with np.errstate(all="ignore"):
                apart = ~np.isclose(left, right, tolerance, tolerance * scale * (not exact), equal_nan=not exact)
            values = [side[apart][:4].tolist() for side in (left, right)]
            return f"{name} {want.dtype}{list(want.shape)}: {values[0]}, expected {values[1]}"
    return ""


class Judge:
    """Judges seeds for a list of Targets each."""

    def __init__(self, keep: Path | None = None) -> None:
        self.keep = keep  # where models that are not right go
        self.cache = tempfile.TemporaryDirectory()  # of what all bundles share, the runtime
        self.maker = Server("tests.conformance.random_onnx.maker", MAKE_SECONDS)
        self.builder = Server("tests.conformance.onnx.builder", BUILD_SECONDS)
        self.runner = Server("tests.conformance.onnx.runner", RUN_SECONDS)

    def judge(self, seed: int, targets: list[str]) -> Verdict:
        """Make the model of a seed, build it, run it and compare."""
        with tempfile.TemporaryDirectory() as temporary:
            verdict = self._judge(seed, targets, Path(temporary))
            if self.keep is not None and verdict.status != "right":
                shutil.copytree(temporary, self.keep / str(seed), dirs_exist_ok=True)
        return verdict

    def _judge(self, seed: int, targets: list[str], folder: Path) -> Verdict:
        request = {"folder": str(folder), "seed": seed, "freeze": (), "targets": targets, "cache": self.cache.name}
        for attempt in range(ATTEMPTS):
            answer = self.maker.ask({**request, "attempt": attempt})
            if answer["status"] == "made":
                break
        if answer["status"] != "made":
            return Verdict(seed, "none", answer["message"])
        answer = self.builder.ask(request)
        if answer["status"] == "built":
            answer = self.runner.ask(request)
        if answer["status"] != "ran":
            text = answer["message"] + (f": {answer['detail']}" if answer.get("detail") else "")
            return Verdict(seed, "failed" if answer["status"] == "unfit" else answer["status"], text)
        made = pickle.loads((folder / "outputs.pickle").read_bytes())
        expected, coarse = pickle.loads((folder / "expected.pickle").read_bytes())
        if len(made) != len(expected):
            return Verdict(seed, "wrong", f"{len(made)} outputs, expected {len(expected)}")
        problem = difference(made, expected, coarse)
        return Verdict(seed, "wrong" if problem else "right", problem)

    def close(self) -> None:
        """End the processes."""
        for server in (self.maker, self.builder, self.runner):
            server.close()
        self.cache.cleanup()


def judge_seeds(seeds: Iterable[int], targets: tuple[str, ...], keep: Path | None = None) -> Iterator[Verdict]:
    """Yield what becomes of each seed; every second is built for the first Target alone."""
    judge = Judge(keep)
    try:
        for seed in seeds:
            yield judge.judge(seed, list(targets if seed % 2 else targets[:1]))
    finally:
        judge.close()

"""Build a file of the corpus and compare what the bundle computes with onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

import packager
from packager.errors import PackagerError
from tests.conformance.architectures.running import reason_of
from tests.conformance.carried.differences import differences

from .case import Case
from .feeds import Array, feed, shape_at


@dataclass(frozen=True)
class Outcome:
    """What became of a file: ``right``, ``wrong``, ``refused``, or ``crashed`` where packager raised something else.

    ``not exported`` is what the exporter itself refuses, and ``not run`` what onnxruntime does.
    """

    name: str
    verdict: str
    reason: str = ""
    error: float = 0.0
    seconds: float = 0.0


def run(case: Case, folder: Path, targets: Sequence[str] = (), reference: Path | None = None) -> Outcome:
    """Return the outcome of one file, which is made in ``folder`` unless it is there.

    onnxruntime computes what the bundle is compared with, of the file itself or of ``reference``.
    """
    path = folder / f"{case.name}.onnx"
    try:
        if not path.exists():
            case.make(path)
        session = _session(reference or path)
    except Exception as error:  # exporters and onnxruntime raise whatever they like
        kind = "not run" if path.exists() else "not exported"
        return Outcome(case.name, kind, f"{type(error).__name__} {error}".splitlines()[0][:200])
    start = time.monotonic()
    try:
        library = packager.build(
            path, folder / f"{case.name}.so", dims=dict(case.dims), targets=list(targets), cache=False
        )
    except PackagerError as error:
        return Outcome(case.name, "refused", reason_of(error), seconds=time.monotonic() - start)
    except Exception as error:
        return Outcome(case.name, "crashed", f"{type(error).__name__} {error}", seconds=time.monotonic() - start)
    seconds, largest = time.monotonic() - start, 0.0
    with packager.load(library) as bundle:
        for at, feeds in feeds_of(case, session):
            try:
                expected = results(session, feeds)
            except Exception as error:
                return Outcome(case.name, "not run", str(error)[:200], seconds=seconds)
            try:
                found = bundle.run(feeds)
            except PackagerError as error:
                return Outcome(case.name, "wrong", f"at {at}: {reason_of(error)}", seconds=seconds)
            for name, value in expected.items():
                problem, difference = differences(found[name], value, case.tolerance, case.apart, case.random)
                largest = max(largest, difference)
                if problem:
                    return Outcome(case.name, "wrong", f"{name} at {at}: {problem}", largest, seconds)
    return Outcome(case.name, "right", "", largest, seconds)


def feeds_of(case: Case, session: onnxruntime.InferenceSession) -> Iterator[tuple[dict[str, int], dict[str, Array]]]:
    """Yield the dims of each size that a file is run at, and the inputs by name."""
    for seed, sizes in enumerate(case.sizes):
        fixed = {name: bounds for name, bounds in case.dims.items() if isinstance(bounds, int)}
        at = {**fixed, **sizes}
        yield (
            at,
            {
                spec.name: feed(spec.name, spec.type, shape_at(spec.shape, at), at, seed)
                for spec in session.get_inputs()
            },
        )


def runs_of(case: Case, path: Path) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Yield inputs and onnxruntime's outputs for each size that a file is run at."""
    session = _session(path)
    for _, feeds in feeds_of(case, session):
        yield feeds, results(session, feeds)


def results(session: onnxruntime.InferenceSession, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return onnxruntime's outputs by name."""
    names = [spec.name for spec in session.get_outputs()]
    return {name: np.asarray(value) for name, value in zip(names, session.run(None, feeds), strict=True)}


def _session(path: Path) -> onnxruntime.InferenceSession:
    """Open a file without fusions: they round elsewhere than the file says, some by 4e-4 of a float32's output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

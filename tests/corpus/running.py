"""Build a file of the corpus and compare what the bundle computes with onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

import packager
from packager.errors import PackagerError
from tests.conformance.architectures.running import reason_of

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
        for seed, sizes in enumerate(case.sizes):
            fixed = {name: bounds for name, bounds in case.dims.items() if isinstance(bounds, int)}
            at = {**fixed, **sizes}
            feeds = {
                spec.name: feed(spec.name, spec.type, shape_at(spec.shape, at), at, seed)
                for spec in session.get_inputs()
            }
            names = [spec.name for spec in session.get_outputs()]
            try:
                expected = dict(zip(names, session.run(None, feeds), strict=True))
            except Exception as error:
                return Outcome(case.name, "not run", str(error)[:200], seconds=seconds)
            try:
                found = bundle.run(feeds)
            except PackagerError as error:
                return Outcome(case.name, "wrong", f"at {at}: {reason_of(error)}", seconds=seconds)
            for name, value in expected.items():
                problem, difference = _compare(found[name], np.asarray(value), case)
                largest = max(largest, difference)
                if problem:
                    return Outcome(case.name, "wrong", f"{name} at {at}: {problem}", largest, seconds)
    return Outcome(case.name, "right", "", largest, seconds)


def _session(path: Path) -> onnxruntime.InferenceSession:
    """Open a file without fusions: they round elsewhere than the file says, some by 4e-4 of a float32's output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _compare(found: Array, expected: Array, case: Case) -> tuple[str, float]:
    """Return what differs, and the largest difference where 1 is the root mean square of ``expected``."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)} for {expected.dtype}{list(expected.shape)}", 0.0
    if case.random or not expected.size:
        return "", 0.0
    if not np.issubdtype(expected.dtype, np.floating):
        # A label flips where two scores tie but for rounding.
        share = float(np.mean(found != expected))
        return (f"{share:.0%} of elements differ" if share > 10 * case.tolerance else ""), 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(found == expected, 0.0, np.abs(found.astype(np.float64) - expected))
    apart = np.where(np.isnan(found) & np.isnan(expected), 0.0, apart)
    finite = expected[np.isfinite(expected)].astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 1.0
    error = float(apart.max()) / (size or 1.0)
    far = float(np.mean(~(apart <= case.tolerance * (size or 1.0))))
    return (f"{far:.0%} of elements differ, by up to {error:.1e}" if far > case.apart else ""), error

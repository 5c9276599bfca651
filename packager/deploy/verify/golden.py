"""Runs a bundle's golden pairs in a subprocess, because a broken bundle may crash its process.

`verify --run` executes ``python -m packager.deploy.verify.golden verify BUNDLE RESULT.json``; `build --golden` executes
it with ``compute`` and other inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle import safetensors
from packager.bundle.arrays import Array
from packager.bundle.golden import decode_golden
from packager.bundle.manifest import GOLDEN_SECTION
from packager.bundle.reader import BundleFile, inspect, read_section
from packager.bundle.staging import temporary_folder
from packager.deploy.verify.findings import Finding, error
from packager.errors import BackendError, PackagerError, RunError
from packager.resources import PACKAGE


def compare(name: str, actual: Array, expected: Array, rtol: float, atol: float) -> str | None:
    """Return how an output differs, or None. Integers and bools must be equal; NaN equals NaN."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"output {name!r} is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "iub":
        wrong = actual != expected
        difference = wrong.astype(np.float64)
    else:
        got, want = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.abs(got - want)
            same = (got == want) | (np.isnan(got) & np.isnan(want)) | (difference <= atol + rtol * np.abs(want))
        wrong = ~same
    if not wrong.any():
        return None
    worst = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(difference, nan=np.inf), -1))), wrong.shape)
    return (
        f"output {name!r}: {int(wrong.sum())} of {wrong.size} elements differ; at {[int(axis) for axis in worst]} "
        f"{actual[worst]} instead of {expected[worst]}"
    )


def run_golden(path: Path, libraries: Sequence[str | Path] | None = None) -> list[str]:
    """Load a bundle in this process and run all cases; return the differences. Raises PackagerError."""
    from packager.deploy.load.loader import load  # verify without --run must not need ctypes

    bundle_file = inspect(path)
    manifest = bundle_file.manifest
    if manifest.golden is None:
        return []
    cases = decode_golden(read_section(bundle_file, GOLDEN_SECTION), manifest)
    problems = []
    with load(path, libraries=libraries) as bundle:
        for index, case in enumerate(cases):
            with bundle.session() as session:  # a new session: initial states
                results = session.run(case.inputs, entry=case.entry)
            for name, expected in case.outputs.items():
                problem = compare(name, results[name], expected, manifest.golden.rtol, manifest.golden.atol)
                if problem:
                    problems.append(f"case {index}: {problem}")
    return problems


def golden_findings(
    bundle: BundleFile, timeout: float, libraries: Sequence[str | Path] | None = None
) -> Iterator[Finding]:
    """Run the golden pairs of a bundle in a subprocess; ``timeout`` is in seconds, ``libraries`` as in
    ``packager.load``."""

    def finding(aspect: str, what: str, why: str, hint: str) -> Finding:
        return error(f"run.{aspect}", what, where=str(bundle.path), why=why, hint=hint)

    with temporary_folder("verify") as folder:
        result_file = folder / "result.json"
        try:
            folders = "" if libraries is None else json.dumps([str(folder) for folder in libraries])
            process = _start_apart(["verify", str(bundle.path.absolute()), str(result_file), folders], timeout)
        except subprocess.TimeoutExpired:
            yield finding("timeout", f"not done after {timeout:g} s", "it hangs or is slow", "raise --timeout")
            return
        if not result_file.exists():
            what = f"the process that ran the bundle was {_how_it_ended(process)}"
            yield finding("crash", what, "the bundle's code does not work here", "rebuild; report it if it persists")
            return
        result = json.loads(result_file.read_text("utf-8"))
    if result["error"]:
        yield finding("refused", result["error"], "the bundle does not run here", result["hint"] or "see the message")
    for problem in result["problems"]:
        yield finding("golden", problem, "the model computes something else here", "rebuild for this machine")


def run_apart(path: Path, inputs: Mapping[str, Array], entry: str | None = None) -> dict[str, Array]:
    """Run a bundle in a subprocess and return its outputs: code of backends and users' libraries may crash.

    Raises RunError if the bundle refuses the inputs, BackendError if it terminates its process.
    """
    with temporary_folder("golden") as folder:
        result_file, given, computed = (folder / name for name in ("result.json", "inputs", "outputs"))
        given.write_bytes(safetensors.encode(inputs))
        arguments = ["compute", str(path.absolute()), str(result_file), str(given), str(computed)]
        process = _start_apart([*arguments, *([] if entry is None else [entry])], None)
        if not result_file.exists():
            raise BackendError(
                f"the bundle was {_how_it_ended(process)} as it ran the golden inputs",
                hint="the code of a backend, or of a library of operators, does not work",
            )
        result = json.loads(result_file.read_text("utf-8"))
        if result["error"]:
            raise RunError(result["error"], status=result["status"], name=result["name"], hint=result["hint"])
        return safetensors.decode(computed.read_bytes())


def _start_apart(arguments: Sequence[str], timeout: float | None) -> subprocess.CompletedProcess[bytes]:
    root = str(PACKAGE.parent)
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        # -P: else a folder `packager` in the current folder would be imported instead.
        [sys.executable, "-P", "-m", "packager.deploy.verify.golden", *arguments],
        env=os.environ | {"PYTHONPATH": search},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=timeout,
        check=False,
    )


def _how_it_ended(process: subprocess.CompletedProcess[bytes]) -> str:
    code = process.returncode
    how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    last = process.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
    return f"{how} {last[0]}".rstrip()


def _compute(path: Path, given: Path, computed: Path, entry: str | None = None) -> None:
    from packager.deploy.load.loader import load

    with load(path) as bundle:
        results = bundle.run(safetensors.decode(given.read_bytes()), entry=entry)
        computed.write_bytes(safetensors.encode(results))


def _main(
    mode: str, path: str, result_file: str, given: str = "", computed: str = "", entry: str | None = None
) -> None:
    result: dict[str, Any] = {"error": None, "hint": None, "problems": []}
    try:
        if mode == "verify":
            result["problems"] = run_golden(Path(path), json.loads(given) if given else None)
        else:
            _compute(Path(path), Path(given), Path(computed), entry)
    except PackagerError as failure:
        result |= {"error": failure.message, "hint": failure.hint}
        if isinstance(failure, RunError):
            result |= {"status": failure.status, "name": failure.name}
    Path(result_file).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])

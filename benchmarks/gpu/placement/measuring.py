"""Tune trials on a GPU, and measure what they choose beside single backends and torch, a network in a process each."""

from __future__ import annotations

import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

import packager
from benchmarks.gpu.cublas import unpack
from benchmarks.gpu.cublas_torch import device_outputs, turns_of
from benchmarks.gpu.placement.cases import BY_NAME, ENTRIES, Case, chosen
from benchmarks.gpu.placement.parts import measure_parts
from benchmarks.gpu.placement.processes import step
from benchmarks.gpu.zoo.cases import module_of
from benchmarks.gpu.zoo.measuring import error
from benchmarks.gpu.zoo.rivals import given_to, torch_runs
from benchmarks.harness.gpu import header
from packager.cli.reports.tables import print_tables
from packager.cli.reports.tune import tune_tables
from packager.deploy.measure.tune import TuneResult, tune

AT_ONCE = 3
"""Networks in work at once: one has the GPU for measurements while torch.compile works for the others."""
LIMIT_S = 300.0
"""No network takes longer."""
SLOW = 3.0
"""How many times as long as the chosen one a plan takes that is not measured in turns."""
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
Runs = dict[str, Callable[[], Any]]


def run(folder: Path, output: Path, only: str, *, seconds: float, compiled: bool, linked: bool) -> None:
    """Measure all that is built and not yet in ``output``, or has failed; write it after each network."""
    report = json.loads(output.read_text()) if output.exists() else header("placement") | {"cases": {}}
    report["torch"] = torch.__version__
    kind = "placed" if linked else "trial"
    known = {name for name, found in report["cases"].items() if "us" in found}
    todo = [case for case in chosen(only) if case.name not in known and is_built(case, kind, folder)]
    writing = Lock()

    def one(case: Case) -> None:
        words = ["linked" if linked else "tuned", case.name, str(folder), str(seconds), str(int(compiled))]
        done = step(words, time.monotonic() + LIMIT_S)
        found = {"failed": done.why} if done.why else json.loads(done.printed.splitlines()[-1])
        with writing:
            report["cases"][case.name] = found | {"seconds": round(done.seconds, 1)}
            print(case.name, done, summary(found), flush=True)
            partial = output.with_suffix(".part")
            partial.write_text(json.dumps(report, indent=1) + "\n")
            partial.replace(output)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, todo))


def is_built(case: Case, kind: str, folder: Path) -> bool:
    """Return whether a bundle of a case is there, or is there compressed."""
    return any((folder / f"{case.name}-{kind}.so{ending}").exists() for ending in ("", ".xz"))


def bundle_of(case: Case, kind: str, folder: Path) -> Path:
    """Return a bundle of a case, decompressed if it is not."""
    path = folder / f"{case.name}-{kind}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            unpack(folder, Path(work), path.stem).replace(path)
    return path


def summary(found: Mapping[str, Any]) -> str:
    """Return what was found in a line."""
    return " ".join(f"{name} {spread['median']:.1f}" for name, spread in found.get("us", {}).items())


@contextmanager
def gpu_alone(folder: Path) -> Iterator[None]:
    """Wait until no other process of this benchmark measures."""
    with (folder / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Rivals:
    """A network in torch: its inputs, what float64 computes, its best runs, and what these differ."""

    def __init__(self, case: Case, folder: Path, *, compiled: bool) -> None:
        module, self.inputs = module_of(ENTRIES[case.model], case.batch)
        dtype = DTYPES[case.precision]
        with torch.no_grad(), gpu_alone(folder):  # doubles keep a GPU busy
            exactly, doubles = given_to(module, self.inputs, torch.float64)
            self.exact = exactly(*doubles)
            del exactly
            single, singles = given_to(module, self.inputs, dtype)
            self.error = error(single(*singles), self.exact)
        with torch.no_grad():
            self.runs: Runs = torch_runs(module, self.inputs, dtype, compiled=compiled)
        torch.cuda.synchronize()


def measure_tuned(case: Case, folder: Path, seconds: float, *, compiled: bool) -> dict[str, Any]:
    """Tune a trial; return what it chose, and errors and times of that, of single backends and of torch."""
    rivals = Rivals(case, folder, compiled=compiled)
    path = bundle_of(case, "trial", folder)
    with gpu_alone(folder), ExitStack() as stack:
        start = time.perf_counter()
        result = tune(path, seconds=seconds)
        found: dict[str, Any] = {"tune_s": round(time.perf_counter() - start, 1)}
        (folder / f"{case.name}.records.json").write_bytes(result.records.to_json())
        with (folder / f"{case.name}.txt").open("w") as text:
            print_tables(tune_tables(result), text)
        assert result.placement is not None
        bundle = stack.enter_context(packager.load(path))
        found["bytes_beside_weights"] = bundle.manifest.sizes.file - bundle.manifest.weights.bytes
        given = {tensor.name: rivals.inputs[tensor.name].cuda() for tensor in bundle.inputs}
        selections = selections_of(bundle, result)
        sessions = {name: (bundle, each) for name, each in selections.items()}
        functions = {one.symbol: one.record.chosen for one in result.functions}
        found["tune"] = result.placement.to_json()
        for key, measure in {
            "compared": lambda: _compared(sessions, given, rivals, stack),
            "parts": lambda: {"parts": measure_parts(bundle, path, given, functions, result.device)},
        }.items():
            try:
                found |= measure()
            except Exception as failure:  # what tune has found is kept
                found[f"{key} failed"] = f"{type(failure).__name__}: {failure}"
    return found


def selections_of(bundle: Any, result: TuneResult) -> dict[str, dict[str, str]]:
    """Return what is compared: ``chosen``, each backend alone, and that with the candidates of functions as chosen."""
    assert result.placement is not None
    manifest = bundle.manifest
    found = {"chosen": result.selection}
    functions = {one.symbol: one.record.chosen for one in result.functions}
    plans = {plan.name: plan.digits for plan in manifest.placement.plans}
    for plan in result.placement.plans:
        if not plan.single or plan.name not in plans:
            continue
        ways = {c.name: c.alternatives[d].name for c, d in zip(manifest.choices, plans[plan.name], strict=True)}
        found[plan.name] = ways
        if any(one.record.chosen != one.before for one in result.functions):
            found[f"{plan.name}, candidates as chosen"] = ways | functions
    return found


def measure_linked(case: Case, folder: Path, *, compiled: bool) -> dict[str, Any]:
    """Return errors and times of the bundle that records make, of those of single backends, and of torch."""
    rivals = Rivals(case, folder, compiled=compiled)
    kinds = [kind for kind in ("placed", *case.alone) if is_built(case, kind, folder)]
    paths = {kind: bundle_of(case, kind, folder) for kind in kinds}
    with gpu_alone(folder), ExitStack() as stack:
        bundles: dict[str, tuple[Any, Mapping[str, str]]] = {
            kind: (stack.enter_context(packager.load(path)), {}) for kind, path in paths.items()
        }
        given = {tensor.name: rivals.inputs[tensor.name].cuda() for tensor in bundles["placed"][0].inputs}
        return _compared(bundles, given, rivals, stack)


def _compared(
    sessions: Mapping[str, tuple[Any, Mapping[str, str]]], given: Mapping[str, Any], rivals: Rivals, stack: ExitStack
) -> dict[str, Any]:
    """Return errors of sessions, times in turns with torch, and quartiles of their ratios to the first one's."""
    errors, runs = {"torch": rivals.error}, {}
    stream = torch.cuda.current_stream()
    times: dict[str, float] = {}
    for name, (bundle, selection) in sessions.items():
        outputs = device_outputs(bundle)
        session = stack.enter_context(bundle.session(graph="on", selection=selection))
        call = session.bind(given, outputs, stream)
        call()
        torch.cuda.synchronize()
        errors[name] = error(outputs["output"], rivals.exact)
        call()  # the graph is there now
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times[name] = time.perf_counter() - start
        if times[name] < SLOW * times[next(iter(sessions))]:
            runs[name] = call
    turns = turns_of(runs | rivals.runs)
    first = np.array(turns[next(iter(sessions))])
    return {
        "errors": errors,
        "us": {name: _quartiles(np.array(us)) for name, us in turns.items()},
        "ratio": {name: _quartiles(np.array(us) / first) for name, us in turns.items()},
        "slow_us": {name: round(s * 1e6, 1) for name, s in times.items() if name not in runs},
    }


def _quartiles(samples: np.ndarray) -> dict[str, float]:
    low, median, high = np.percentile(samples, (25, 50, 75))
    return {"median": round(float(median), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def do_step(words: list[str]) -> None:
    """Do a step of ``run`` in this process, and print what it finds as JSON: ``tuned`` or ``linked``."""
    kind, name, folder, seconds, compiled = words
    case, wanted = BY_NAME[name], compiled == "1"
    if kind == "tuned":
        found = measure_tuned(case, Path(folder), float(seconds), compiled=wanted)
    else:
        found = measure_linked(case, Path(folder), compiled=wanted)
    sys.stdout.write(json.dumps(found) + "\n")

"""``python -m tests.corpus.gpu``: files of the corpus on a GPU, in another machine than what builds them.

``build`` needs all of packager, onnxruntime and no GPU; ``run`` needs its deploy side and numpy. What ``run`` prints is
the largest difference to onnxruntime over all sizes, where 1 is an output's root mean square, and the seconds of a run
in a session without and with CUDA graphs, at the last size, with copies from and to the host.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import packager
from tests.conformance.carried.parcel import CarriedRun, add_runs, read_index, write_index

TARGETS = ("cuda -arch=sm_90a",)
# Runs of a session at each size, and those of the last one whose median is told.
TIMES, TIMED = 3, 20
GRAPHS = ("off", "on")


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("parcel", type=Path)
    building.add_argument("patterns", nargs="+", help="names of files, such as 'bert*' or '*.tf2onnx'")
    building.add_argument("--target", action="append", default=[])
    building.add_argument("--models", type=Path, default=Path("build/corpus"), help="where files are made; kept")
    running = commands.add_parser("run")
    running.add_argument("parcel", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "build":
        arguments.models.mkdir(parents=True, exist_ok=True)
        _build(arguments.parcel, arguments.patterns, arguments.target or TARGETS, arguments.models)
    else:
        for line in _run(arguments.parcel):
            print(line, flush=True)


def _build(parcel: Path, patterns: Sequence[str], targets: Sequence[str], models: Path) -> None:
    """Build files one by one; the index is written anew after each, so that a part can be carried."""
    from packager.errors import PackagerError
    from tests.conformance.architectures.running import reason_of

    from .files import CASES
    from .running import runs_of

    parcel.mkdir(parents=True, exist_ok=True)
    kept, refused = read_index(parcel) if (parcel / "parcel.json").exists() else ([], {})
    for name, case in CASES.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        start, path = time.monotonic(), models / f"{name}.onnx"
        kept = [run for run in kept if run.bundle != name]
        refused.pop(name, None)
        try:
            if not path.exists():
                case.make(path)
            own = [
                CarriedRun(f"{name}/{number}", name, None, feeds, list(expected.values()), 0, case.tolerance)
                for number, (feeds, expected) in enumerate(runs_of(case, path))
            ]
            packager.build(path, parcel / f"{name}.so", dims=dict(case.dims), targets=targets, golden=None, jobs=1)
        except PackagerError as error:
            refused[name] = {"status": "refused", "message": reason_of(error)}
        except Exception as error:  # exporters and onnxruntime raise whatever they like
            refused[name] = {"status": "not run", "message": f"{type(error).__name__} {error}"[:300]}
        else:
            add_runs(parcel, own)
            kept += own
        write_index(parcel, kept, refused)
        print(f"{name} {time.monotonic() - start:.0f} s {refused.get(name, '')}", flush=True)


def _run(parcel: Path) -> list[str]:
    from tests.conformance.carried.differences import differences

    runs, refused = read_index(parcel)
    by_bundle: dict[str, list[CarriedRun]] = {}
    for run in runs:
        by_bundle.setdefault(run.bundle, []).append(run)
    lines, right = [], 0
    for name, own in by_bundle.items():
        largest, problems, seconds = 0.0, [], []
        with packager.load(parcel / f"{name}.so") as bundle:
            for graph in GRAPHS:
                with bundle.session(graph=graph) as session:
                    for run in own:
                        for _ in range(TIMES):
                            made = session.run(dict(run.inputs))
                            for output, wanted in zip(made.values(), run.outputs, strict=True):
                                problem, error = differences(np.asarray(output), wanted, run.atol)
                                largest = max(largest, error)
                                problems += [f"{run.name}: {problem}"] if problem else []
                    seconds.append(_median(session, own[-1]))
        right += not problems
        times = " ".join(f"{second * 1e6:.0f}" for second in seconds)
        lines.append(f"{name} {'wrong' if problems else 'right'} {largest:.1e} {len(own)} {times} {problems[:1] or ''}")
        print(lines[-1], flush=True)
    return [f"right: {right} of {len(by_bundle)}; {len(refused)} refused"]


def _median(session: packager.Session, run: CarriedRun) -> float:
    seconds = []
    for _ in range(TIMED):
        start = time.perf_counter()
        session.run(dict(run.inputs))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()

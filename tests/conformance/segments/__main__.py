"""``python -m tests.conformance.segments``: runs that are split into CUDA graphs, compared and timed on a GPU.

``build`` needs all of packager, onnxruntime and no GPU; ``run`` needs its deploy side, numpy, and torch for tensors on
the GPU. For each model ``run`` compares all its runs with onnxruntime's, in sessions without and with graphs, one after
the other, with tensors on the host and on the GPU, where they are elsewhere in each run; and the bits of all sessions.
Then it prints microseconds of a run, with tensors on the GPU, without and with graphs, measured in turns.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import packager
from tests.conformance.carried.differences import differences
from tests.conformance.carried.parcel import CarriedRun, add_runs, read_index, write_index

TARGET = "cuda -arch=sm_90a"
GRAPHS = ("off", "auto", "on")
# Times that each run of a session is repeated, sessions in a row, and timings of a run: turns of so many.
REPEATED, SESSIONS, TURNS, TIMED = 3, 3, 7, 20


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.segments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("patterns", nargs="*", default=["*"], help="names of models, such as 'lstm*'")
    building.add_argument("--target", default=TARGET)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("patterns", nargs="*", default=["*"])
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.folder, arguments.patterns, arguments.target)
    else:
        run(arguments.folder, arguments.patterns)


def build(folder: Path, patterns: Sequence[str], target: str) -> None:
    """Build bundles, and write onnxruntime's results."""
    import onnx
    import onnxruntime

    from tests.conformance.segments.models import cases

    folder.mkdir(parents=True, exist_ok=True)
    kept, refused = read_index(folder) if (folder / "parcel.json").exists() else ([], {})
    for name, make in cases():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        case, path = make(), folder / f"{name}.onnx"
        onnx.save(case.model, path)
        kept = [run for run in kept if run.bundle != name]
        refused.pop(name, None)
        try:
            packager.build(path, folder / f"{name}.so", dims=dict(case.dims), targets=[target])
        except packager.PackagerError as error:
            refused[name] = {"status": "refused", "message": str(error)}
            print(f"{name}: refused: {error}", flush=True)
        else:
            session = onnxruntime.InferenceSession(path)
            own = [
                CarriedRun(f"{name}/{number}", name, None, feeds, session.run(None, dict(feeds)), 0, case.tolerance)
                for number, feeds in enumerate(case.runs)
            ]
            add_runs(folder, own)
            kept += own
            print(f"{name}: built", flush=True)
        path.unlink()
        write_index(folder, kept, refused)


def run(folder: Path, patterns: Sequence[str]) -> None:
    """Compare and time all bundles of a folder; print a line for each."""
    import torch

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    runs, refused = read_index(folder)
    names = [n for n in dict.fromkeys(run.bundle for run in runs) if any(fnmatch.fnmatch(n, p) for p in patterns)]
    right = 0
    for name in names:
        own = [run for run in runs if run.bundle == name]
        try:
            problems, largest, seconds = _check(folder / f"{name}.so", own)
        except packager.PackagerError as error:
            problems, largest, seconds = [f"{type(error).__name__}: {error}"], 0.0, {}
        right += not problems
        times = " ".join(f"{mode} {1e6 * low:.0f}/{1e6 * middle:.0f}" for mode, (low, middle) in seconds.items())
        print(f"{name}: {'wrong' if problems else 'right'} {largest:.1e} us {times} {problems[:3] or ''}", flush=True)
    print(f"right: {right} of {len(names)}; refused: {refused}")


def _check(path: Path, runs: Sequence[CarriedRun]) -> tuple[list[str], float, dict[str, tuple[float, float]]]:
    """Return problems, the largest difference, and the least and the median seconds of the first run by graph mode."""
    problems: list[str] = []
    largest = 0.0
    bits: dict[str, list[bytes]] = {}

    def compare(run: CarriedRun, made: Mapping[str, Any], where: str) -> None:
        nonlocal largest
        arrays = [np.asarray(value.cpu() if hasattr(value, "cpu") else value) for value in made.values()]
        for output, wanted in zip(arrays, run.outputs, strict=True):
            problem, error = differences(output, wanted, run.atol)
            largest = max(largest, error)
            problems.extend([f"{run.name} {where}: {problem}"] if problem else [])
        same = bits.setdefault(run.name, [array.tobytes() for array in arrays])
        if same != [array.tobytes() for array in arrays]:
            problems.append(f"{run.name} {where}: other bits than the first session's")

    with packager.load(path) as bundle:
        for graph in GRAPHS:
            for number in range(SESSIONS):
                with bundle.session(graph=graph) as session:
                    for time_ in range(REPEATED):
                        for run in runs:
                            compare(run, session.run(dict(run.inputs)), f"graph {graph}, session {number}, {time_}")
                            compare(run, _on_device(session, run), f"graph {graph}, session {number}, {time_}, moved")
        return problems, largest, _times(bundle, runs[0])


def _tensors(session: packager.Session, run: CarriedRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return new tensors on the GPU: the inputs of a run, and room for its outputs."""
    import torch

    inputs = {name: torch.from_numpy(np.ascontiguousarray(array)).cuda() for name, array in run.inputs.items()}
    shapes = session.output_shapes(dict(run.inputs))
    dtypes = [torch.from_numpy(np.empty(0, wanted.dtype)).dtype for wanted in run.outputs]
    rooms = zip(shapes.items(), dtypes, strict=True)
    return inputs, {name: torch.empty(shape, dtype=dtype, device="cuda") for (name, shape), dtype in rooms}


def _on_device(session: packager.Session, run: CarriedRun) -> dict[str, Any]:
    """Run with new tensors on the GPU. Those of the last runs are kept, so that these are elsewhere."""
    inputs, outputs = _tensors(session, run)
    KEPT.append((inputs, outputs))
    del KEPT[:-3]
    return dict(session.run(inputs, outputs=outputs))


KEPT: list[Any] = []


def _times(bundle: packager.Bundle, run: CarriedRun) -> dict[str, tuple[float, float]]:
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    sessions = {graph: bundle.session(graph=graph) for graph in seconds}
    again = {graph: session.bind(*_tensors(session, run)) for graph, session in sessions.items()}
    for call in again.values():
        for _ in range(3):
            call()
    for _ in range(TURNS):
        for graph, call in again.items():
            for _ in range(TIMED):
                start = time.perf_counter()
                call()
                seconds[graph].append(time.perf_counter() - start)
    for session in sessions.values():
        session.close()
    return {graph: (min(found), statistics.median(found)) for graph, found in seconds.items()}


if __name__ == "__main__":
    main()

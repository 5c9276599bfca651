"""Run all of a parcel, in several processes at once, and judge each run."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from tests.conformance.carried.parcel import CarriedRun
from tests.conformance.server import Server

RUN_SECONDS = 10.0
PATIENCE = 2
Judge = Callable[[CarriedRun, Mapping[str, Any]], str]
Outcome = dict[str, str]


def run_parcel(
    folder: Path, runs: Sequence[CarriedRun], judge: Judge, tell: Callable[[str, Outcome], None], lanes: int
) -> dict[str, Outcome]:
    """Return what becomes of each run: ``right``, ``wrong`` or ``failed``, and why.

    One that is not right is tried again in a process of its own: where it is right there, something before it did it.
    """
    by_bundle: dict[str, list[CarriedRun]] = collections.defaultdict(list)
    for run in runs:
        by_bundle[run.bundle].append(run)
    servers: SimpleQueue[Server] = SimpleQueue()
    made = [Server("tests.conformance.carried.runner", RUN_SECONDS, patience=PATIENCE) for _ in range(lanes)]
    for server in made:
        servers.put(server)

    def one(bundle: str) -> list[tuple[str, Outcome]]:
        server = servers.get()
        outcomes = []
        for run in by_bundle[bundle]:
            outcomes.append((run.name, _run_twice(folder, run, judge, server)))
            tell(*outcomes[-1])
        servers.put(server)
        return outcomes

    try:
        with ThreadPoolExecutor(lanes) as pool:
            return dict(outcome for outcomes in pool.map(one, by_bundle) for outcome in outcomes)
    finally:
        for server in made:
            server.close()


def _run_twice(folder: Path, run: CarriedRun, judge: Judge, server: Server) -> Outcome:
    outcome = _run(folder, run, judge, server)
    if outcome["status"] != "right":
        server.close()
        again = _run(folder, run, judge, server)
        if again["status"] != outcome["status"]:
            outcome["message"] += f"; by itself {again['status']} {again['message']}"
        server.close()
    return outcome


def _run(folder: Path, run: CarriedRun, judge: Judge, server: Server) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        inputs, outputs = Path(temporary) / "inputs.npz", Path(temporary) / "outputs.npz"
        np.savez(inputs, **run.inputs)
        answer = server.ask(
            {
                "bundle": str(folder / f"{run.bundle}.so"),
                "entry": run.entry,
                "inputs": str(inputs),
                "output": str(outputs),
            }
        )
        if answer["status"] != "ran":
            return {"status": "failed", "message": answer["message"]}
        with np.load(outputs) as arrays:
            times = len(arrays.files) // len(answer["names"])
            for time in range(times):
                problem = judge(run, {name: arrays[f"{time}/{name}"] for name in answer["names"]})
                if problem:
                    return {"status": "wrong", "message": f"run {time}: {problem}"}
    return {"status": "right", "message": ""}

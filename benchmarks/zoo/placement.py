"""Placement by measurement: what a trial finds, beside the greedy placement and each backend alone.

    python -m benchmarks.zoo.placement --threads 1
    python -m benchmarks.zoo.placement --limit 480      as many models as that many seconds are enough for

For each model: a trial is built and measured (``packager tune``), the model is built again with the records, and as a
greedy bundle, and with each backend alone. Then all of these run in turns in one process. Several models are in work at
once, each with cores of its own; what has ended is written. Models are those of ``benchmarks.cpu``, and then of the
zoo, those first that are built fast.

Where nothing was changed, the placed bundle is the greedy one: its ratio is the noise of the machine, and no result.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.cpu import models as cpu_models
from benchmarks.harness.measure import RESULTS, Report, Threshold, add_turns, finish, make_parser, versions, write
from benchmarks.harness.turns import Model
from benchmarks.zoo.many_cores import as_they_end, process_pool, whole_cores
from benchmarks.zoo.models import ZOO, make
from packager.deploy.measure.tune import tune

Record = dict[str, Any]
BACKENDS = ("ccompiler",)
HEADER = ("model", "threads", "choices", "vectors", "placed / greedy", "placed / best alone", "tune s", "changed")


def model_of(name: str, workdir: Path) -> Model:
    return make(name, workdir / "zoo") if name in ZOO else cpu_models.make(name, 1, workdir / "models")


def place_one(name: str, workdir: Path, backends: Sequence[str], arguments: argparse.Namespace) -> list[Record]:
    """Find the placement of a model for each number of threads, and measure what is linked with it in turns."""
    check_time(arguments)
    model, folder = model_of(name, workdir), workdir / "placement" / name
    folder.mkdir(parents=True, exist_ok=True)
    records, every = [], ["llvm", *backends]

    def build(label: str, targets: Sequence[str], place: str | Path = "greedy") -> Path:
        check_time(arguments)
        return packager.build(model.path, folder / f"{label}.so", targets=targets, place=place)

    trial = build("trial", every, "trial")
    alone = {"llvm alone": ["llvm"]} | ({f"{kind} alone": ["llvm", kind] for kind in backends} if backends[1:] else {})
    others = {"greedy": build("greedy", every)}
    for label, targets in alone.items():
        others[label] = build(label.split()[0], targets)
    for threads in arguments.threads:
        check_time(arguments)
        start = time.perf_counter()
        found = tune(trial, threads=threads, seconds=arguments.seconds)
        assert found.placement is not None
        seconds = time.perf_counter() - start
        file = folder / f"records_{threads}.json"
        file.write_bytes(found.records.to_json())
        placed = build(f"placed_{threads}", every, file)
        changed = {c.problem: c.chosen for c in found.placement.choices if c.chosen != c.greedy}
        times = run_in_turns({"placed": placed, **others}, model, threads, arguments)
        records.append(
            {
                "model": name,
                "threads": threads,
                "us": {label: statistics.median(us) for label, us in times.items()},
                "ratios": {label: _ratio(us, times["placed"]) for label, us in times.items() if label != "placed"},
                "vectors": found.placement.vectors,
                "choices": len(found.placement.choices),
                "changed": changed,
                "measured": {"chosen": found.placement.us} | {plan.name: plan.us for plan in found.placement.plans},
                "tune_s": seconds,
                "bytes": {label: path.stat().st_size for label, path in {"trial": trial, "placed": placed}.items()},
            }
        )
    return records


def check_time(arguments: argparse.Namespace) -> None:
    """Raise TimeoutError where the time of ``--limit`` is over."""
    if time.time() > arguments.end:
        raise TimeoutError("the time of --limit is over")


def by_cost() -> list[str]:
    """Return all models: those of ``benchmarks.cpu``, then the zoo's by the recorded seconds of their builds."""
    recorded = json.loads((RESULTS / "zoo.json").read_text())["figures"]["configurations"]
    seconds = {record["model"]: record["build_s"] for record in recorded if "build_s" in record}
    zoo = sorted(ZOO, key=lambda name: seconds.get(name, math.inf))
    return [*dict.fromkeys([*cpu_models.MODELS, *zoo])]


def run_in_turns(
    bundles: Mapping[str, Path], model: Model, threads: int, arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return microseconds of a run of each bundle, in each round: the fastest of a turn.

    One that takes twice as long as the fastest sits out after the first round.
    """
    taken: dict[str, list[float]] = {label: [] for label in bundles}
    loaded = {label: packager.load(path, threads=threads) for label, path in bundles.items()}
    sessions = {label: bundle.session() for label, bundle in loaded.items()}
    outputs = {label: session.run(model.inputs) for label, session in sessions.items()}
    runs = {label: session.bind(model.inputs, outputs[label]) for label, session in sessions.items()}
    draw = random.Random(0)
    for number in range(arguments.rounds):
        best = min((taken[label][0] for label in runs if taken[label]), default=math.inf)
        order = [label for label in runs if number == 0 or taken[label][0] < 2 * best]
        for label in draw.sample(order, len(order)):
            end, fastest = time.perf_counter() + arguments.block, math.inf
            while time.perf_counter() < end:
                start = time.perf_counter()
                runs[label]()
                fastest = min(fastest, time.perf_counter() - start)
            taken[label].append(fastest * 1e6)
    for label in bundles:
        got, wanted = (next(iter(outputs[key].values())) for key in (label, "greedy"))
        np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2, err_msg=label)
        sessions[label].close()
        loaded[label].close()
    return taken


def _ratio(times: Sequence[float], placed: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two bundles' times, which were taken one after the other."""
    return statistics.median(time / own for time, own in zip(times, placed, strict=False))


def report(records: Sequence[Record]) -> Report:
    """Return the table: ratios above 1 say that the placed bundle is faster."""
    rows = []
    for record in records:
        ratios = record["ratios"]
        changed = ", ".join(dict.fromkeys(record["changed"].values()))
        rows.append(
            (
                record["model"],
                str(record["threads"]),
                str(record["choices"]),
                str(record["vectors"]),
                f"{ratios['greedy']:.3f}",
                f"{min(ratios.values()):.3f}",
                f"{record['tune_s']:.0f}",
                changed[:60] or "-",
            )
        )
    # What was not changed is compared with what it is not: backends alone.
    compared = [
        {label: ratio for label, ratio in record["ratios"].items() if record["changed"] or label != "greedy"}
        for record in records
    ]
    least = min((min(ratios.values()) for ratios in compared), default=math.nan)
    changed = [record["ratios"] for record in records if record["changed"]]
    over_best = max((min(ratios.values()) for ratios in changed), default=math.nan)
    over_greedy = max((ratios["greedy"] for ratios in changed), default=math.nan)
    thresholds = [
        Threshold("least placed / best of greedy and each backend alone", least, 0.99, "", True),
        Threshold("greatest gain over the greedy placement", over_greedy, 1.05, "", True),
        Threshold("greatest gain over the best of them", over_best, 1.05, "", True),
    ]
    return Report(
        title="Placement by measurement on the CPU, in turns (above 1: the placed bundle is faster)",
        header=HEADER,
        rows=rows,
        figures={"configurations": list(records)},
        thresholds=thresholds,
    )


def main() -> int:
    """Place all models, and report."""
    parser = make_parser("placement", "Placement by measurement, on the CPU.")
    names = by_cost()
    parser.add_argument("--models", nargs="+", choices=names, metavar="MODEL", default=names, help="default: all")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="default: 1")
    parser.add_argument("--backends", nargs="+", default=[*BACKENDS], help="beside llvm; default: ccompiler")
    parser.add_argument("--seconds", type=float, default=20, help="of tune; default: 20")
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds after which no step begins; default: none"
    )
    add_turns(parser, rounds=15, block_s=0.05)
    arguments = parser.parse_args()
    versions()
    arguments.end = time.time() + arguments.limit
    found: list[Record] = []
    with process_pool(whole_cores(max(arguments.threads))) as pool:
        every = {
            pool.submit(place_one, name, arguments.workdir, tuple(arguments.backends), arguments): name
            for name in arguments.models
        }
        for _, records in as_they_end(every):
            found = sorted(found + records, key=lambda r: (names.index(r["model"]), r["threads"]))
            write(report(found), arguments)
    return finish(report(found), arguments)


if __name__ == "__main__":
    sys.exit(main())

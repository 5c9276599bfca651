"""Whole models on the CPU: packager beside onnxruntime, TVM's virtual machine, torch.compile and IREE, in turns.

    python -m benchmarks.cpu.compare
    python -m benchmarks.cpu.compare --models resnet50 mlp --batch 1 --threads 1 --engines packager --rounds 7
    python -m benchmarks.cpu.compare --models bert --append

A configuration is a model, a batch and a number of threads. In each of its rounds every engine has a turn, in a process
of its own, while the others are stopped. Ratios are of turns of the same round. ``--append`` keeps the other
configurations of the file of results, which is written after each one: so a run of all can be split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.engines import ENGINES, Settings, compile_program
from benchmarks.cpu.models import COMPARED, QUANTIZED, SMALL, make
from benchmarks.harness.measure import Report, Spread, Threshold, add_turns, finish, make_parser, provenance, write
from benchmarks.harness.turns import EngineError, Model, Worker, in_order, level, some_cores, started, timed

GEOMEAN, WORST, SMALL_RATIO, QUANTIZED_RATIO = 1.15, 0.95, 3.0, 1.0
RIVAL = "onnxruntime"
PACKAGES = ("torch", "transformers", "iree-base-compiler", "iree-base-runtime", "openvino")
Record = dict[str, Any]
Turns = dict[str, list[float]]


def measure(model: Model, threads: int, engines: Sequence[str], settings: Settings, plan: argparse.Namespace) -> Record:
    """Measure one configuration; ``plan`` has the options of that name."""
    starts = {name: partial(lambda engine: ENGINES[engine](model, threads, settings)(), name) for name in engines}
    failed: dict[str, str] = {}
    with started(starts, failed) as workers:
        for worker in workers.values():
            worker.keep_to(some_cores(threads))
        turns = measure_turns(workers, failed, plan)
    entries: dict[str, Record] = {
        name: {"failed": failed[name]} if name in failed else asdict(workers[name].ready) for name in engines
    }
    for name, times in turns.items():
        if times:
            milliseconds = [seconds * 1e3 for seconds in times]
            entries[name] |= {"ms": asdict(Spread.of(milliseconds)), "best_ms": min(milliseconds)}
    own = turns.get("packager", [])
    ratios = {
        name: asdict(Spread.of([theirs / ours for theirs, ours in zip(times, own, strict=False)]))
        for name, times in turns.items()
        if name != "packager" and own and times
    }
    place = {"model": model.name, "batch": model.batch, "threads": threads}
    return place | provenance() | {"engines": entries, "over_packager": ratios}


def measure_turns(workers: dict[str, Worker], failed: dict[str, str], plan: argparse.Namespace) -> Turns:
    """Return for each engine the seconds of a call in each round. An engine that fails is noted and drops out.

    An engine sits out when its turns have taken ``plan.seconds``.
    """
    turns: Turns = {name: [] for name in workers}
    spent = dict.fromkeys(workers, 0.0)
    for index in range(plan.rounds):
        for name in in_order(workers, index):
            if name not in turns or spent[name] > plan.seconds:
                continue
            if workers[name].ready.first_s > plan.seconds:  # its only one
                turns[name].append(workers[name].ready.first_s)
                spent[name] = math.inf
                continue
            try:
                seconds, calls = timed(workers[name], plan.block)
            except EngineError as error:
                failed[name] = str(error)
                del turns[name]
                continue
            turns[name].append(seconds)
            spent[name] += seconds * calls
    return turns


def key(record: Record) -> tuple[int, int, int]:
    """Return the place of a configuration in the table."""
    return COMPARED.index(record["model"]), record["batch"], record["threads"]


def report(records: Sequence[Record], shown: Sequence[Record], engines: Sequence[str]) -> Report:
    """Return the outcome of all configurations in the file; the table has those of this run."""
    notes = [
        f"{_place(record)}: {name} failed: {entry['failed']}"
        for record in shown
        for name, entry in record["engines"].items()
        if "failed" in entry
    ]
    means = geomeans(records)
    notes += [f"geometric mean of {RIVAL} / packager, {what}: {mean:.2f}" for what, mean in means.items()]
    return Report(
        title=f"Whole models in fp32 on {level()}, ms, median (quartiles); ratios above 1: packager is faster",
        header=("model", "batch", "threads", *engines, f"{RIVAL} / packager", "of the best"),
        rows=[_row(record, engines) for record in shown],
        figures={"configurations": list(records), "geomeans": means, "cpu_level": level()},
        thresholds=thresholds(records),
        notes=notes,
        packages=PACKAGES,
    )


def _place(record: Record) -> str:
    return f"{record['model']}, batch {record['batch']}, {record['threads']} thread(s)"


def _row(record: Record, engines: Sequence[str]) -> tuple[str, ...]:
    def cell(name: str) -> str:
        entry = record["engines"].get(name, {})
        return str(Spread(**entry["ms"])) if "ms" in entry else "failed" if entry else "-"

    ratio = record["over_packager"].get(RIVAL)
    places = (record["model"], str(record["batch"]), str(record["threads"]))
    if not ratio:
        return (*places, *map(cell, engines), "-", "-")
    best = record["engines"][RIVAL]["best_ms"] / record["engines"]["packager"]["best_ms"]
    return (*places, *map(cell, engines), str(Spread(**ratio)), f"{best:.2f}")


def geomeans(records: Sequence[Record]) -> dict[str, float]:
    """Return geometric means of the rival's time over ours: of all fp32 models, and by what they differ in."""
    groups: dict[str, list[float]] = {}
    for record in records:
        if record["model"] in QUANTIZED or RIVAL not in record["over_packager"]:
            continue
        ratio = record["over_packager"][RIVAL]["median"]
        names = ["all", f"batch {record['batch']}, {record['threads']} thread(s)"]
        for name in names if record["model"] in SMALL else [*names, "without the small models"]:
            groups.setdefault(name, []).append(ratio)
    return {name: float(np.exp(np.mean(np.log(ratios)))) for name, ratios in groups.items()}


def thresholds(records: Sequence[Record]) -> list[Threshold]:
    """Return the thresholds for the configurations that were measured."""
    found: list[Threshold] = []
    failed = sum("failed" in record["engines"].get("packager", {}) for record in records)
    if failed:
        found.append(Threshold("configurations that packager fails on", failed, 1, ""))
    ratios = {
        _place(r): (r["model"], r["over_packager"][RIVAL]["median"]) for r in records if RIVAL in r["over_packager"]
    }
    if fp32 := [model for model, _ in ratios.values() if model not in QUANTIZED]:
        mean = geomeans(records)["all"]
        found.append(Threshold(f"{RIVAL} / packager, geometric mean of {len(fp32)}", mean, GEOMEAN, "", True))
    everything = [name for name in COMPARED if name not in QUANTIZED]
    groups = (("worst", WORST, everything), ("small", SMALL_RATIO, SMALL), ("int8", QUANTIZED_RATIO, QUANTIZED))
    for what, limit, names in groups:
        if group := {place: ratio for place, (model, ratio) in ratios.items() if model in names}:
            place = min(group, key=lambda name: group[name])
            found.append(Threshold(f"{RIVAL} / packager, {what}: {place}", group[place], limit, "", True))
    return found


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("cpu", "Whole models on the CPU, beside other engines.")
    parser.add_argument("--models", nargs="+", choices=COMPARED, default=COMPARED, metavar="MODEL", help="default: all")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8], help="default: 1 8")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all")
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: its own")
    add_turns(parser, rounds=15, block_s=0.2)
    parser.add_argument("--seconds", type=float, default=20, help="an engine sits out after them; default: 20")
    parser.add_argument("--append", action="store_true", help="keep other configurations of the file of results")
    return parser.parse_args(argv)


def main() -> int:
    """Measure and report."""
    arguments = parse()
    workdir: Path = arguments.workdir
    settings = Settings(workdir, tuple(arguments.target))
    output: Path = arguments.output
    kept = json.loads(output.read_text())["figures"]["configurations"] if arguments.append and output.exists() else []
    compile_program(workdir)
    measured: list[Record] = []
    for name, batch, threads in itertools.product(arguments.models, arguments.batch, arguments.threads):
        record = measure(make(name, batch, workdir / "models"), threads, arguments.engines, settings, arguments)
        measured.append(record)
        kept = sorted([other for other in kept if key(other) != key(record)] + [record], key=key)
        result = report(kept, measured, arguments.engines)
        write(result, arguments)
        if not arguments.json:
            print(" ".join(_row(record, arguments.engines)), flush=True)
    return finish(result, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The zoo on the CPU: packager beside onnxruntime and others, in turns; errors against float64; slow functions.

    python -m benchmarks.zoo.compare
    python -m benchmarks.zoo.compare --models hifigan unet --threads 1 --engines packager onnxruntime openvino
    python -m benchmarks.zoo.compare --families encoder decoder --append --cold --profile

``--profile`` measures the primitive functions of each model that is slower than onnxruntime, or has less than 0.9 of
OpenVINO's speed, and lists those that take more than 3 % of its time and reach less than half of their floor: FLOPs at
a core's peak, or bytes at a copy's speed, whichever takes longer. ``--cold`` builds without a cache
and notes the seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.compare import RIVAL, Record, measure
from benchmarks.cpu.engines import ENGINES, ON_PATH, Settings, build, compile_program
from benchmarks.harness.cpu_peak import peak, peak_flops
from benchmarks.harness.measure import Report, Threshold, add_turns, finish, make_parser, write
from benchmarks.harness.turns import EngineError, level, started, timed
from benchmarks.zoo.models import ZOO, make

GEOMEAN, WORST = 1.3, 1.0
STRONGEST = 0.9  # of OpenVINO's speed
# Errors against float64 below this part of the greatest output are of no interest, whatever onnxruntime's are.
SMALL_ERROR, ERROR_RATIO = 1e-6, 2.0
SHARE, FLOOR = 0.03, 0.5
COPIED = 1 << 24  # bytes of the copy that bandwidth is measured by
FAMILIES = sorted({entry.family for entry in ZOO.values()})


def error_of(record: Record, engine: str) -> float:
    """Return an engine's greatest error against float64, as a part of the greatest output; NaN if it failed."""
    return float(record["engines"].get(engine, {}).get("difference", np.nan))


def ratio_of(record: Record) -> float:
    """Return onnxruntime's time over packager's; NaN if one of them failed."""
    return float(record["over_packager"].get(RIVAL, {}).get("median", np.nan))


def speeds(workdir: Path) -> tuple[float, float]:
    """Return the FLOP/s of a core's multiply-adds, and the bytes per second of a copy, read and written."""
    with started({"peak": peak(workdir)}) as workers:
        seconds = min(timed(workers["peak"], 0.05)[0] for _ in range(5))
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - start)
    return peak_flops() / seconds, 2 * COPIED / min(taken)


def is_slow(record: Record) -> bool:
    """Whether packager is slower than onnxruntime, or than OpenVINO by a tenth, where they were measured."""
    strongest = float(record["over_packager"].get("openvino", {}).get("median", np.nan))
    return ratio_of(record) < WORST or strongest < STRONGEST


def slow_functions(bundle: Path, flops: float, copied: float) -> list[dict[str, Any]]:
    """Return the primitive functions of a bundle that take much time and are far from their floor, slowest first."""
    argv = [sys.executable, "-m", "packager", "bench", bundle, "--profile", "--json", "--runs", "5"]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=True, env=os.environ | ON_PATH)
    found = []
    for function in json.loads(done.stdout)["profile"]["primitives"]:
        least_us = max((function["flops"] or 0) / flops, (function["bytes"] or 0) / copied) * 1e6
        reached = least_us / function["us"] if function["us"] else 1.0
        if function["share"] >= SHARE and reached < FLOOR:
            kept = {key: function[key] for key in ("symbol", "backend", "ops", "calls", "us", "share")}
            found.append(kept | {"of_floor": reached})
    return sorted(found, key=lambda function: -function["us"])


def _row(record: Record, engines: Sequence[str]) -> tuple[str, ...]:
    def cell(name: str) -> str:
        entry = record["engines"].get(name, {})
        return f"{entry['ms']['median']:.3g}" if "ms" in entry else "failed" if entry else "-"

    place = (record["model"], ZOO[record["model"]].family, str(record["threads"]))
    ratio = ratio_of(record)
    best = "-"
    if not math.isnan(ratio):
        best = f"{record['engines'][RIVAL]['best_ms'] / record['engines']['packager']['best_ms']:.2f}"
    errors = f"{error_of(record, 'packager'):.0e} ({error_of(record, RIVAL):.0e})"
    return (*place, *map(cell, engines), f"{ratio:.2f}", best, errors, f"{record.get('build_s') or np.nan:.0f}")


def report(records: Sequence[Record], shown: Sequence[Record], engines: Sequence[str]) -> Report:
    """Return the outcome of all records; the table has those of this run."""
    notes = [
        f"{record['model']}, {record['threads']} thread(s): {name} failed: {entry['failed']}"
        for record in shown
        for name, entry in record["engines"].items()
        if "failed" in entry
    ]
    for record in shown:
        for function in record.get("slow", ()):
            text = f"{function['share']:.0%} in {function['symbol']} ({', '.join(function['ops'][:4])})"
            notes.append(f"{record['model']}: {text}: {function['of_floor']:.0%} of its floor")
    limits: list[Threshold] = []
    means: dict[str, float] = {}
    for threads in sorted({record["threads"] for record in records}):
        found = {r["model"]: ratio_of(r) for r in records if r["threads"] == threads and not math.isnan(ratio_of(r))}
        if not found:
            continue
        what = f"{RIVAL} / packager, {threads} thread(s)"
        means[what] = float(np.exp(np.mean(np.log([*found.values()]))))
        worst = min(found, key=lambda name: found[name])
        limits.append(Threshold(f"{what}, geometric mean of {len(found)}", means[what], GEOMEAN, "", True))
        limits.append(Threshold(f"{what}, worst: {worst}", found[worst], WORST, "", True))
        for family in FAMILIES:
            ratios = [ratio for name, ratio in found.items() if ZOO[name].family == family]
            if ratios:
                means[f"{what}, {family}"] = float(np.exp(np.mean(np.log(ratios))))
    inexact = [
        record["model"]
        for record in records
        if error_of(record, "packager") > max(SMALL_ERROR, ERROR_RATIO * error_of(record, RIVAL))
    ]
    limits.append(Threshold(f"models of too great an error {inexact}", len(inexact), 1, ""))
    notes += [f"geometric mean of {what}: {mean:.2f}" for what, mean in means.items()]
    return Report(
        title=f"The zoo in fp32 on {level()}, batch 1 of each model, ms; above 1 packager is faster",
        header=("model", "family", "threads", *engines, f"{RIVAL} / packager", "of the best", "error", "build s"),
        rows=[_row(record, engines) for record in shown],
        figures={"configurations": list(records), "geomeans": means, "cpu_level": level()},
        thresholds=limits,
        notes=notes,
        packages=("torch", "transformers", "openvino"),
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("zoo", "The zoo on the CPU, beside other engines.")
    parser.add_argument("--models", nargs="+", choices=ZOO, metavar="MODEL", help="default: all")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="FAMILY", help="of these")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=["packager", RIVAL], help=f"default: packager {RIVAL}"
    )
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: its own")
    add_turns(parser, rounds=9, block_s=0.1)
    parser.add_argument("--seconds", type=float, default=10, help="an engine sits out after them; default: 10")
    parser.add_argument("--append", action="store_true", help="keep other configurations of the file of results")
    parser.add_argument("--cold", action="store_true", help="build without a cache")
    parser.add_argument("--profile", action="store_true", help="profile what is slower than onnxruntime")
    return parser.parse_args(argv)


def wanted(arguments: argparse.Namespace) -> list[str]:
    """Return the names of the models that the options ask for."""
    return [n for n, e in ZOO.items() if n in (arguments.models or ZOO) and e.family in arguments.families]


def main() -> int:
    """Measure and report."""
    arguments = parse()
    workdir: Path = arguments.workdir
    settings = Settings(workdir, tuple(arguments.target))
    output: Path = arguments.output
    kept = json.loads(output.read_text())["figures"]["configurations"] if arguments.append and output.exists() else []
    compile_program(workdir)
    flops, copied = speeds(workdir) if arguments.profile else (0.0, 0.0)
    measured: list[Record] = []
    result = report(kept, measured, arguments.engines)
    for name, threads in itertools.product(wanted(arguments), arguments.threads):
        model = make(name, workdir / "zoo")
        record: Record = {}
        if arguments.cold:
            shutil.rmtree(workdir / "cache", ignore_errors=True)
            start = time.perf_counter()
            try:
                build(model, workdir, *(part for target in settings.targets for part in ("-t", target)))
                record["build_s"] = time.perf_counter() - start
            except EngineError:
                record["build_s"] = None  # measuring says why
        record = measure(model, threads, arguments.engines, settings, arguments) | record
        if arguments.profile and is_slow(record):
            record["slow"] = slow_functions(build(model, workdir), flops, copied)
        measured.append(record)
        place = (name, threads)
        kept = [other for other in kept if (other["model"], other["threads"]) != place] + [record]
        kept.sort(key=lambda other: ([*ZOO].index(other["model"]), other["threads"]))
        result = report(kept, measured, arguments.engines)
        write(result, arguments)
        if not arguments.json:
            print(" ".join(_row(record, arguments.engines)), flush=True)
    return finish(result, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Bundles beside onnxruntime on a machine that they are carried to, with as many threads as it has.

    python -m benchmarks.cpu.other_machine pack --models squeezenet mlp --batch 8 --gemm 1024x1024x1024
    python -m benchmarks.cpu.other_machine run --threads 1 4 16

``pack`` makes a folder of bundles, models, the C program that runs both, and onnxruntime's library. ``run`` needs that
folder, the scripts, Python and numpy: no compiler and neither of the two packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.cpu_peak import peak, share
from benchmarks.harness.measure import ROOT, Report, Spread, add_turns, finish, make_parser, versions
from benchmarks.harness.pairs import load_pairs, save_pairs
from benchmarks.harness.turns import Model, Worker, level, some_cores, started, take_turns

LIBRARY = "libonnxruntime.so"
VERSIONS = "versions.json"
ENGINES = ("packager", "onnxruntime")
Record = dict[str, Any]


def pack(arguments: argparse.Namespace) -> int:
    """Fill the folder."""
    from benchmarks.cpu.engines import build, compile_program, onnxruntime_library
    from benchmarks.cpu.gemm import make as make_product
    from benchmarks.cpu.models import make

    folder: Path = arguments.folder
    if folder.exists():
        raise SystemExit(f"error: {folder} is there already\nhint: remove it, or name another with --folder")
    models = [make(name, batch, arguments.workdir / "models") for name in arguments.models for batch in arguments.batch]
    models += [make_product(problem, arguments.workdir / "models") for problem in arguments.gemm]
    folder.mkdir(parents=True)
    compile_program(folder)
    shutil.copy(onnxruntime_library(), folder / LIBRARY)
    for model in models:
        shutil.copy(model.path, folder)
        shutil.copy(build(model, arguments.workdir), folder / f"{model.path.stem}.so")
        save_pairs(folder / f"{model.path.stem}.npz", [(model.inputs, model.outputs)])
    (folder / VERSIONS).write_text(json.dumps(versions()))
    return 0


def measure(model: Model, threads: int, arguments: argparse.Namespace) -> Record:
    """Return seconds of a call by engine, and the peak's FLOPs per second beside products."""
    folder: Path = arguments.folder.resolve()
    arguments_of = {
        "packager": f"{folder / model.path.stem}.so",
        "onnxruntime": f"{folder / LIBRARY},{folder / model.path.name}",
    }
    starts: dict[str, Callable[[], Worker]] = {}
    for name, words in arguments_of.items():
        argv = [folder / "serve", "-t", str(threads), "TENSORS", f"{name}={words}"]
        starts[name] = partial(Worker, model, argv, folder)
    problem = model.path.stem.removeprefix("gemm_") if _is_product(model.path) else ""
    if problem:
        starts["peak"] = peak(folder)
    with started(starts) as workers:
        times = take_turns(workers, some_cores(threads), arguments.rounds, arguments.block)
    ratios = [theirs / ours for theirs, ours in zip(times["onnxruntime"], times["packager"], strict=True)]
    record = {
        "model": model.path.stem,
        "threads": threads,
        "ms": {name: asdict(Spread.of([1e3 * seconds for seconds in times[name]])) for name in times},
        "over_packager": asdict(Spread.of(ratios)),
    }
    if problem:
        record["share_of_peak"] = {name: asdict(share(problem, times[name], times["peak"])) for name in ENGINES}
    return record


def _is_product(path: Path) -> bool:
    return path.stem.startswith("gemm_")


def run(arguments: argparse.Namespace) -> int:
    """Measure all that the folder has."""
    if not (arguments.folder / VERSIONS).exists():
        raise SystemExit(f"error: {arguments.folder} was not made by pack\nhint: name its folder with --folder")
    records = []
    for path in sorted(arguments.folder.glob("*.onnx")):
        name, _, batch = path.stem.rpartition("_b")  # as cpu/models.py names files; a product has no batch
        model = Model(name or path.stem, int(batch) if name else 1, path, *load_pairs(path.with_suffix(".npz"))[0])
        for threads in [1] if _is_product(path) else arguments.threads:
            records.append(measure(model, threads, arguments))
            if not arguments.json:
                print(" ".join(_row(records[-1])), flush=True)
    report = Report(
        title=f"Carried bundles on {level()}, ms, median (quartiles); ratios above 1: packager is faster",
        header=("model", "threads", *ENGINES, "onnxruntime / packager", "of the peak, %", "onnxruntime, %"),
        rows=[_row(record) for record in records],
        figures={"cpu_level": level(), "cores": len(os.sched_getaffinity(0)), "configurations": records},
        versions=json.loads((arguments.folder / VERSIONS).read_text()),
    )
    return finish(report, arguments)


def _row(record: Record) -> tuple[str, ...]:
    times = (str(Spread(**record["ms"][name])) for name in ENGINES)
    share = record.get("share_of_peak")
    shares = (str(Spread(**share[name])) if share else "-" for name in ENGINES)
    return (record["model"], str(record["threads"]), *times, str(Spread(**record["over_packager"])), *shares)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("cpu_carried", "Bundles beside onnxruntime on a machine that they are carried to.")
    actions = parser.add_subparsers(dest="action", required=True)
    packer, runner = actions.add_parser("pack"), actions.add_parser("run")
    for action in (packer, runner):
        action.add_argument("--folder", type=Path, default=ROOT / "build" / "carried", help="default: build/carried")
    packer.add_argument("--models", nargs="*", default=[], help="names as of cpu/compare.py; default: none")
    packer.add_argument("--batch", nargs="+", type=int, default=[8], help="of these models; default: 8")
    packer.add_argument("--gemm", nargs="*", default=[], metavar="MxNxK", help="products; default: none")
    runner.add_argument("--threads", nargs="+", type=int, default=[1], help="default: 1; products have one")
    add_turns(runner, rounds=15, block_s=0.05)
    return parser.parse_args(argv)


def main() -> int:
    """Pack or run."""
    arguments = parse()
    return pack(arguments) if arguments.action == "pack" else run(arguments)


if __name__ == "__main__":
    sys.exit(main())

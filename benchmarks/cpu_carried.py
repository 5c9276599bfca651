"""Bundles beside onnxruntime on a machine that they are carried to, with as many threads as it has.

    python benchmarks/cpu_carried.py pack --models squeezenet mlp --batch 8 --gemm 1024x1024x1024
    python benchmarks/cpu_carried.py run --threads 1 4 16

``pack`` makes a folder of bundles, models, the C program that runs both, and onnxruntime's library. ``run`` needs that
folder, the scripts, Python and numpy: no compiler and neither of the two packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import ROOT, Report, Spread, finish, make_parser, versions
from turns import Model, Worker, level, peak_flops, read_pair, some_cores, timed, write_pair

LIBRARY = "libonnxruntime.so"
VERSIONS = "versions.json"
Record = dict[str, Any]


def pack(arguments: argparse.Namespace) -> int:
    """Fill the folder."""
    from cpu_engines import build
    from cpu_gemm import make as make_product
    from cpu_models import make
    from engines import compile_program, onnxruntime_library

    folder: Path = arguments.folder
    models = [make(name, batch, arguments.workdir / "models") for name in arguments.models for batch in arguments.batch]
    models += [make_product(problem, arguments.workdir / "models") for problem in arguments.gemm]
    folder.mkdir(parents=True)
    compile_program(folder, "serve")
    shutil.copy(onnxruntime_library(), folder / LIBRARY)
    for model in models:
        shutil.copy(model.path, folder)
        shutil.copy(build(model, arguments.workdir, ()), folder / f"{model.path.stem}.so")
        write_pair(folder / f"{model.path.stem}.npz", model.inputs, model.outputs)
    (folder / VERSIONS).write_text(json.dumps(versions()))
    return 0


def measure(model: Model, threads: int, arguments: argparse.Namespace) -> Record:
    """Return seconds of a call by engine, and the peak's FLOPs per second beside products."""
    folder: Path = arguments.folder.resolve()
    engines = {
        "packager": f"packager={folder / model.path.stem}.so",
        "onnxruntime": f"onnxruntime={folder / LIBRARY},{folder / model.path.name}",
    }
    workers: dict[str, Worker] = {}
    try:
        for name, engine in engines.items():
            workers[name] = Worker(model, [folder / "serve", "-t", str(threads), "TENSORS", engine], folder)
        if model.name.startswith("gemm_"):
            workers["peak"] = Worker(Model("fma", 1, model.path, {}, {}), [folder / "serve", f"fma={level()}"], folder)
        for worker in workers.values():
            worker.keep_to(some_cores(threads))
        turns: dict[str, list[float]] = {name: [] for name in workers}
        for index in range(arguments.rounds):
            for name in list(workers)[:: 1 if index % 2 == 0 else -1]:
                turns[name].append(timed(workers[name], arguments.block)[0])
    finally:
        for worker in workers.values():
            worker.close()
    ratios = [theirs / ours for theirs, ours in zip(turns["onnxruntime"], turns["packager"], strict=True)]
    record = {
        "model": model.path.stem,
        "threads": threads,
        "ms": {name: asdict(Spread.of([1e3 * seconds for seconds in times])) for name, times in turns.items()},
        "over_packager": asdict(Spread.of(ratios)),
    }
    if "peak" in turns:
        m, n, k = map(int, model.name.removeprefix("gemm_").split("x"))
        part = 100 * 2 * m * n * k / peak_flops(loads=False)
        record["share_of_peak"] = {
            name: asdict(Spread.of([part * peak / own for own, peak in zip(turns[name], turns["peak"], strict=True)]))
            for name in engines
        }
    return record


def run(arguments: argparse.Namespace) -> int:
    """Measure all that the folder has."""
    records = []
    for path in sorted(arguments.folder.glob("*.onnx")):
        model = Model(path.stem, 0, path, *read_pair(path.with_suffix(".npz")))
        for threads in [1] if path.stem.startswith("gemm_") else arguments.threads:
            records.append(measure(model, threads, arguments))
            if not arguments.json:
                print(" ".join(_row(records[-1])), flush=True)
    report = Report(
        title=f"Carried bundles on {level()}, ms, median (quartiles); ratios above 1: packager is faster",
        header=(
            "model",
            "threads",
            "packager",
            "onnxruntime",
            "onnxruntime / packager",
            "of the peak, %",
            "onnxruntime, %",
        ),
        rows=[_row(record) for record in records],
        figures={"cpu_level": level(), "cores": len(os.sched_getaffinity(0)), "configurations": records},
        versions=json.loads((arguments.folder / VERSIONS).read_text()),
    )
    return finish(report, arguments)


def _row(record: Record) -> tuple[str, ...]:
    times = (str(Spread(**record["ms"][name])) for name in ("packager", "onnxruntime"))
    share = record.get("share_of_peak")
    shares = (str(Spread(**share[name])) if share else "-" for name in ("packager", "onnxruntime"))
    return (record["model"], str(record["threads"]), *times, str(Spread(**record["over_packager"])), *shares)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("Bundles beside onnxruntime on a machine that they are carried to.")
    parser.add_argument("action", choices=("pack", "run"))
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "carried", help="made by pack; default: build/carried"
    )
    parser.add_argument("--models", nargs="*", default=[], help="to pack: names as of cpu.py; default: none")
    parser.add_argument("--batch", nargs="+", type=int, default=[8], help="default: 8")
    parser.add_argument("--gemm", nargs="*", default=[], metavar="MxNxK", help="products to pack; default: none")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="default: 1; products have one")
    parser.add_argument("--rounds", type=int, default=15, help="default: 15")
    parser.add_argument("--block", type=float, default=0.05, help="seconds of a turn; default: 0.05")
    return parser.parse_args(argv)


def main() -> int:
    """Pack or run."""
    arguments = parse()
    return pack(arguments) if arguments.action == "pack" else run(arguments)


if __name__ == "__main__":
    sys.exit(main())

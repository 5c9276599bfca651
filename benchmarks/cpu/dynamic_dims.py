"""Bundles of dynamic dims beside bundles of the same model whose dims are fixed at the measured size, in turns.

    python -m benchmarks.cpu.dynamic_dims
    python -m benchmarks.cpu.dynamic_dims --models bert gpt2_step --threads 1 --exporter dynamo
    python -m benchmarks.cpu.dynamic_dims --models bert --sizes batch=1,sequence=37 --append

A model is exported once, with dynamic dims. One bundle has bounds for them, the other one size for each. Both run on
the same inputs, each in a process of its own, and agree with onnxruntime. The ratio is that of the fastest calls: what
others do on the machine makes calls slower, never faster. That of the medians of turns stands beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu.dynamic_models import MODELS, DynamicModel, Sizes
from benchmarks.cpu.engines import Settings, compile_program, run_packager, serve
from benchmarks.harness.measure import Report, Spread, Threshold, add_turns, finish, make_parser, provenance, write
from benchmarks.harness.turns import Model, Worker, in_order, level, some_cores, started

LIMIT = 1.05
PACKAGES = ("torch", "transformers")
KINDS = ("dynamic", "fixed")
Record = dict[str, Any]


def text_of(sizes: Sizes) -> str:
    """Return sizes as ``--sizes`` takes them."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def exported(name: str, exporter: str, folder: Path) -> Path:
    """Return the ONNX file of a model; made in ``folder`` unless it is there."""
    path = folder / f"{name}_{exporter}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_stem(f"{path.stem}-unfinished")
        MODELS[name].export(exporter, unfinished)
        unfinished.rename(path)
    return path


def build(path: Path, dims: dict[str, str], suffix: str, arguments: argparse.Namespace) -> Path:
    """Return the bundle of a file with these sizes or bounds of its dims. Raises EngineError."""
    bundle: Path = arguments.workdir / f"{path.stem}-{suffix}.so"
    options = [word for name, size in dims.items() for word in ("--dim", f"{name}={size}")]
    targets = [word for target in arguments.target for word in ("-t", target)]
    run_packager(arguments.workdir, "build", path, "-o", bundle, *options, *targets)
    return bundle.resolve()


def model_at(name: str, model: DynamicModel, path: Path, sizes: Sizes) -> Model:
    """Return a model with inputs of these sizes and what onnxruntime computes from them."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = model.at(sizes)
    taken = {value.name: inputs[value.name] for value in session.get_inputs()}  # a graph may ignore some
    return Model(name, sizes.get("batch", 1), path, taken, dict(zip(names, session.run(names, taken), strict=True)))


def bounds_of(model: DynamicModel, sizes: Sizes | None, path: Path) -> dict[str, str]:
    """Return what ``--dim`` says of each dim in the file: its size, or its bounds if no sizes are given."""
    import onnx

    found: dict[str, str] = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_param:
                continue
            terms = [term.strip() for term in dim.dim_param.split("+")]
            if len(terms) > 1:  # a sum of dims follows from them
                continue
            low, high = model.dims[dim.dim_param]
            found[dim.dim_param] = f"{low}:{high}" if sizes is None else str(sizes[dim.dim_param])
    return found


def measure(name: str, sizes: Sizes, threads: int, bundles: dict[str, Path], arguments: argparse.Namespace) -> Record:
    """Measure one configuration."""
    path = exported(name, arguments.exporter, arguments.workdir / "models")
    model = model_at(name, MODELS[name], path, sizes)
    settings = Settings(arguments.workdir)
    starts = {kind: partial(serve(model, threads, settings, "packager", bundles[kind])) for kind in KINDS}
    times: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with started(starts) as workers:
        for worker in workers.values():
            worker.keep_to(some_cores(threads))
        for index in range(arguments.rounds):
            for kind in in_order(workers, index):
                times[kind].append(take_turn(workers[kind], arguments.block))
    medians = {kind: [float(np.median(turn)) for turn in times[kind]] for kind in KINDS}
    fastest = {kind: min(min(turn) for turn in times[kind]) for kind in KINDS}
    ratios = [dynamic / fixed for dynamic, fixed in zip(medians["dynamic"], medians["fixed"], strict=True)]
    return {
        "model": name,
        "exporter": arguments.exporter,
        "sizes": text_of(sizes),
        "threads": threads,
        **provenance(),
        "calls": {kind: sum(map(len, times[kind])) for kind in KINDS},
        "ms": {kind: asdict(Spread.of([1e3 * seconds for seconds in medians[kind]])) for kind in KINDS},
        "fastest_ms": {kind: 1e3 * fastest[kind] for kind in KINDS},
        "over_fixed": fastest["dynamic"] / fastest["fixed"],
        "of_medians": asdict(Spread.of(ratios)),
    }


def take_turn(worker: Worker, block_s: float) -> list[float]:
    """Return the seconds of single calls in a turn of about ``block_s``, of some calls in a row if they are short."""
    (probe,) = worker.run(1, 1, 1)
    calls = max(1, round(20e-6 / probe))
    samples = worker.run(0, max(3, min(1000, round(block_s / (probe * calls)))), calls)
    return [sample / calls for sample in samples]


def row_of(record: Record) -> tuple[str, ...]:
    """Return the row of a configuration in the table."""
    places = (record["model"], record["exporter"], record["sizes"], str(record["threads"]))
    times = (f"{record['fastest_ms'][kind]:.4g}" for kind in KINDS)
    return (*places, *times, f"{record['over_fixed']:.3f}", str(Spread(**record["of_medians"])))


def key(record: Record) -> tuple[Any, ...]:
    """Return the place of a configuration in the file."""
    sizes = [text_of(each) for each in MODELS[record["model"]].sizes]
    at = sizes.index(record["sizes"]) if record["sizes"] in sizes else len(sizes)
    return list(MODELS).index(record["model"]), record["exporter"], at, record["sizes"], record["threads"]


def report(records: Sequence[Record], shown: Sequence[Record]) -> Report:
    """Return the outcome of all configurations in the file; the table has those of this run."""
    worst = max(records, key=lambda record: record["over_fixed"])
    what = f"{worst['model']}, {worst['exporter']}, {worst['sizes']}, {worst['threads']} thread(s)"
    ratio = worst["over_fixed"]
    mean = float(np.exp(np.mean([np.log(record["over_fixed"]) for record in records])))
    over = sum(record["over_fixed"] > LIMIT for record in records)
    return Report(
        title=f"Dynamic dims beside fixed ones on {level()}, ms of the fastest calls; below 1 dynamic is faster",
        header=("model", "exporter", "sizes", "threads", *KINDS, "dynamic / fixed", "of medians"),
        rows=[row_of(record) for record in shown],
        figures={"configurations": list(records), "geomean": mean, "cpu_level": level()},
        thresholds=[Threshold(f"dynamic / fixed, worst of {len(records)}: {what}", ratio, LIMIT, "")],
        notes=[f"geometric mean of {len(records)}: {mean:.3f}; above {LIMIT}: {over}"],
        packages=PACKAGES,
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("dynamic_dims", "Bundles of dynamic dims beside bundles of fixed ones.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--sizes", nargs="+", metavar="DIM=SIZE,...", help="default: those of each model")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript")
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: its own")
    add_turns(parser, rounds=15, block_s=0.1)
    parser.add_argument("--append", action="store_true", help="keep other configurations of the file of results")
    return parser.parse_args(argv)


def main() -> int:
    """Measure and report."""
    arguments = parse()
    output: Path = arguments.output
    kept = json.loads(output.read_text())["figures"]["configurations"] if arguments.append and output.exists() else []
    compile_program(arguments.workdir)
    measured: list[Record] = []
    for name in arguments.models:
        model = MODELS[name]
        path = exported(name, arguments.exporter, arguments.workdir / "models")
        dynamic = build(path, bounds_of(model, None, path), "dynamic", arguments)
        for sizes in model.sizes:
            if arguments.sizes and text_of(sizes) not in arguments.sizes:
                continue
            fixed = build(path, bounds_of(model, sizes, path), text_of(sizes).replace(",", "-"), arguments)
            for threads in arguments.threads:
                record = measure(name, sizes, threads, {"dynamic": dynamic, "fixed": fixed}, arguments)
                measured.append(record)
                kept = sorted([other for other in kept if key(other) != key(record)] + [record], key=key)
                result = report(kept, measured)
                write(result, arguments)
                if not arguments.json:
                    print(" ".join(row_of(record)), flush=True)
    return finish(result, arguments)


if __name__ == "__main__":
    sys.exit(main())

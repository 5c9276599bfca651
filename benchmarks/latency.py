"""Latency of whole models: packager, onnxruntime and TVM's virtual machine, in turns in one process.

    python benchmarks/latency.py
    python benchmarks/latency.py --models digits squeezenet --threads 1
    python benchmarks/latency.py --target llvm --target ccompiler -o benchmarks/results/latency_ccompiler.json

Batch 1, the same input for all, outputs compared. No bar: the speed of kernels is a matter of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from engines import compare, compile_program, onnxruntime_engine, packager_engine, tvm_engine
from measure import Report, Spread, finish, make_parser
from models import MODEL_NAMES, build_bundle, build_tvm, make_model

ENGINES = ("packager", "onnxruntime", "tvm")
# Calls in a round, so that one takes milliseconds at least.
CALLS = {"relu": 10_000, "digits": 200}


def main() -> int:
    """Measure and report."""
    parser = make_parser("Latency of whole models.")
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=MODEL_NAMES[1:], help="default: all")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="default: 1 2")
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: llvm")
    parser.add_argument("--rounds", type=int, default=30, help="default: 30")
    parser.add_argument("--seconds", type=float, default=8, help="an engine sits out after them; default: 8")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    program = compile_program(workdir)
    targets = [part for target in arguments.target for part in ("-t", target)]
    figures: dict[str, Any] = {}
    rows = []
    for name in arguments.models:
        try:
            bundle = build_bundle(name, workdir, *targets)
            module = build_tvm(name, workdir, bundle)
        except RuntimeError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            figures[name] = None
            continue
        engines = [packager_engine(bundle), onnxruntime_engine(make_model(name, workdir)), tvm_engine(module)]
        for threads in arguments.threads:
            run = compare(
                program,
                bundle,
                engines,
                threads=threads,
                rounds=arguments.rounds,
                calls=CALLS.get(name, 1),
                seconds=arguments.seconds,
            )
            spreads = {engine: Spread.of([ns / 1e6 for ns in run.rounds[engine]]) for engine in ENGINES}
            ratios = {engine: spreads["packager"].median / spreads[engine].median for engine in ENGINES[1:]}
            figures.setdefault(name, {})[f"threads_{threads}"] = {
                "latency_ms": spreads,
                "packager_over": ratios,
                "difference": run.differences,
            }
            rows.append(
                (name, str(threads), *map(str, spreads.values()), *(f"{ratio:.2f}" for ratio in ratios.values()))
            )
    report = Report(
        title="Latency of one run at batch 1, ms, median (quartiles)",
        header=("model", "threads", *ENGINES, "packager / onnxruntime", "packager / tvm"),
        rows=rows,
        figures=figures,
    )
    return finish(report, arguments)


if __name__ == "__main__":
    sys.exit(main())

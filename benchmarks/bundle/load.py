"""Load and session of the 100 MB ResNet-50, from C, each time in a fresh process.

    python -m benchmarks.bundle.load

The engines take turns. Files are in the page cache: what is measured is the work of the engine, not that of the disk.
"library" is what an engine needs before it sees a model, "load and session" is dlopen, the entry function and
session_create of packager, CreateSession of onnxruntime, and load_module and vm_initialization of TVM. "first run" is
the first answer; for a bundle it includes the page faults of its constants, which are mapped and not read at load.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.harness.engines import compare, compile_program, onnxruntime_engine, packager_engine, tvm_engine
from benchmarks.harness.measure import Bar, Report, Spread, finish, make_parser
from benchmarks.harness.models import build_bundle, build_tvm, make_model

LIMIT_MS = 3


def main() -> int:
    """Measure and report."""
    parser = make_parser("load", "Load and session of ResNet-50.")
    parser.add_argument("--model", default="resnet50", help="default: resnet50")
    parser.add_argument("--runs", type=int, default=20, help="processes per engine; default: 20")
    parser.add_argument("--tvm-runs", type=int, default=5, help="of TVM, whose runs take seconds; default: 5")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    bundle = build_bundle(arguments.model, workdir)
    engines = {
        "packager": packager_engine(bundle),
        "onnxruntime": onnxruntime_engine(make_model(arguments.model, workdir)),
        "tvm": tvm_engine(build_tvm(arguments.model, workdir, bundle)),
    }
    program = compile_program(workdir)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for index in range(arguments.runs):
        for name, engine in engines.items():
            if name != "tvm" or index < arguments.tvm_runs:
                samples[name].append(compare(program, bundle, [engine]).phases[name])
    figures = {
        name: {
            "library_ms": _spread(phases, "open"),
            "load_ms": _spread(phases, "load"),
            "session_ms": _spread(phases, "create"),
            "load_and_session_ms": _spread(phases, "load", "create"),
            "first_run_ms": _spread(phases, "first"),
        }
        for name, phases in samples.items()
    }
    own = figures["packager"]["load_and_session_ms"].median
    shown = ("library_ms", "load_and_session_ms", "first_run_ms")
    rows = [
        (name, *(str(values[key]) for key in shown), f"{values['load_and_session_ms'].median / own:.0f}")
        for name, values in figures.items()
    ]
    report = Report(
        title=f"{arguments.model}, fresh processes, warm page cache, median (quartiles)",
        header=("engine", "library, ms", "load and session, ms", "first run, ms", "load x packager"),
        rows=rows,
        figures=figures,
        bars=[Bar("load and session", own, LIMIT_MS, "ms")],
    )
    return finish(report, arguments)


def _spread(phases: list[dict[str, float]], *names: str) -> Spread:
    """Milliseconds of these phases together."""
    return Spread.of([sum(phase[name] for name in names) / 1e6 for phase in phases])


if __name__ == "__main__":
    sys.exit(main())

"""Load and session of the 100 MB ResNet-50, from C, each time in a fresh process.

    python -m benchmarks.bundle.load

The engines take turns. Files are in the page cache: this measures the work of the engine, not that of the disk.
"library" is what an engine needs before it sees a model, "load and session" is dlopen, the entry function and
session_create of packager, CreateSession of onnxruntime, and load_module and vm_initialization of TVM. "first run" is
the first answer; for a bundle it includes the page faults of its constants, which are mapped and not read at load.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.cpu.engines import ENGINES, Settings, compile_program
from benchmarks.cpu.models import MODELS, make
from benchmarks.harness.measure import Report, Spread, Threshold, finish, make_parser
from benchmarks.harness.turns import Ready

LIMIT_MS = 3
PHASES = {"library_ms": "library_s", "load_and_session_ms": "load_s", "first_run_ms": "first_s"}


def main() -> int:
    """Measure and report."""
    parser = make_parser("load", "Load and session of ResNet-50.")
    parser.add_argument("--model", choices=MODELS, default="resnet50", metavar="MODEL", help="default: resnet50")
    parser.add_argument("--runs", type=int, default=20, help="processes per engine; default: 20")
    parser.add_argument("--tvm-runs", type=int, default=5, help="of TVM, whose runs take seconds; default: 5")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    compile_program(workdir)
    model = make(arguments.model, 1, workdir / "models")
    runs = {"packager": arguments.runs, "onnxruntime": arguments.runs, "tvm": arguments.tvm_runs}
    starts = {name: ENGINES[name](model, 1, Settings(workdir)) for name in runs}
    samples: dict[str, list[Ready]] = {name: [] for name in runs}
    for index in range(arguments.runs):
        for name, start in starts.items():
            if index < runs[name]:
                worker = start()
                worker.close()
                samples[name].append(worker.ready)
    figures = {
        name: {key: Spread.of([1e3 * getattr(ready, phase) for ready in each]) for key, phase in PHASES.items()}
        for name, each in samples.items()
    }
    own = figures["packager"]["load_and_session_ms"].median
    report = Report(
        title=f"{arguments.model}, fresh processes, warm page cache, median (quartiles)",
        header=("engine", "library, ms", "load and session, ms", "first run, ms", "load x packager"),
        rows=[
            (name, *map(str, values.values()), f"{values['load_and_session_ms'].median / own:.0f}")
            for name, values in figures.items()
        ],
        figures=figures,
        thresholds=[Threshold("load and session", own, LIMIT_MS, "ms")],
    )
    return finish(report, arguments)


if __name__ == "__main__":
    sys.exit(main())

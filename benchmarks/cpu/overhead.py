"""Overhead of session_run above its kernels: a model of one operator, called from C, beside its bare kernel.

    python -m benchmarks.cpu.overhead

The model is Relu of 16 floats. The kernel is linked into a library of its own from the object that the build leaves,
and called through a pointer. Each engine has a process of its own; they take turns on one core.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.cpu.engines import ENGINES, Settings, build, compile_program, serve
from benchmarks.cpu.models import make
from benchmarks.harness.measure import Report, Spread, Threshold, add_turns, finish, make_parser
from benchmarks.harness.turns import Model, some_cores, started, take_turns

LIMIT_NS = 300
COMPARED = ("packager", "onnxruntime", "tvm")


def main() -> int:
    """Measure and report."""
    parser = make_parser("overhead", "Overhead of session_run above its kernels.")
    add_turns(parser, rounds=25, block_s=0.05)
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    compile_program(workdir)
    settings, model = Settings(workdir, ("llvm",)), make("relu", 1, workdir / "models")
    starts = {name: ENGINES[name](model, 1, settings) for name in COMPARED}
    starts["kernel"] = serve(model, 1, settings, "kernel", *_kernel(model, workdir))
    with started(starts) as workers:
        times = take_turns(workers, some_cores(1), arguments.rounds, arguments.block)
    calls = {name: [1e9 * seconds for seconds in times[name]] for name in times}
    spreads = {name: Spread.of(each) for name, each in calls.items()}
    overheads = {
        name: Spread.of([call - kernel for call, kernel in zip(calls[name], calls["kernel"], strict=True)])
        for name in COMPARED
    }
    own = overheads["packager"].median
    report = Report(
        title="Relu of 16 floats, 1 thread, median (quartiles)",
        header=("engine", "call, ns", "above the kernel, ns", "x packager"),
        rows=[
            *((name, str(spreads[name]), str(each), f"{each.median / own:.1f}") for name, each in overheads.items()),
            ("bare kernel", str(spreads["kernel"]), "", ""),
        ],
        figures={"call_ns": spreads, "overhead_ns": overheads},
        thresholds=[Threshold("overhead of session_run above its kernels", own, LIMIT_NS, "ns")],
    )
    return finish(report, arguments)


def _kernel(model: Model, workdir: Path) -> tuple[Path, str]:
    """Return a library of the bare kernel, and the kernel's name."""
    from packager.bundle.reader import inspect

    parts = workdir / "relu-parts"
    shutil.rmtree(parts, ignore_errors=True)  # of an earlier run
    bundle = build(model, workdir, "--keep-workdir", parts, "-t", "llvm")
    ((_, primitive),) = inspect(bundle).manifest.primitives()
    library = workdir / "relu-kernel.so"
    subprocess.run(["gcc", "-shared", str(parts / "llvm" / "llvm_0.o"), "-o", str(library)], check=True)
    return library.resolve(), primitive.symbol


if __name__ == "__main__":
    sys.exit(main())

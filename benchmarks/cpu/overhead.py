"""Overhead of session_run above its kernels: a model of one operator, called from C, beside its bare kernel.

    python -m benchmarks.cpu.overhead

The model is Relu of 16 floats. The kernel is linked into a library of its own from the object that the build leaves,
and called through a pointer with the same buffers. The engines take turns in one process, ROUNDS times CALLS calls
each: few enough that a turn of the slowest fits into a time slice of a busy machine, or it alone would be interrupted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.engines import compare, compile_program, onnxruntime_engine, packager_engine, tvm_engine
from benchmarks.harness.measure import Bar, Report, Spread, finish, make_parser
from benchmarks.harness.models import Bundle, build_bundle, build_tvm, make_model

LIMIT_NS = 300
ENGINES = ("packager", "onnxruntime", "tvm")


def main() -> int:
    """Measure and report."""
    parser = make_parser("overhead", "Overhead of session_run above its kernels.")
    parser.add_argument("--rounds", type=int, default=500, help="default: 500")
    parser.add_argument("--calls", type=int, default=2000, help="calls of an engine in a round; default: 2000")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    parts = workdir / "relu-parts"
    shutil.rmtree(parts, ignore_errors=True)  # of an earlier run
    bundle = build_bundle("relu", workdir, "--keep-workdir", parts, "-t", "llvm")
    engines = [
        packager_engine(bundle),
        onnxruntime_engine(make_model("relu", workdir)),
        tvm_engine(build_tvm("relu", workdir, bundle)),
        _kernel_engine(bundle, parts, workdir),
    ]
    run = compare(compile_program(workdir), bundle, engines, rounds=arguments.rounds, calls=arguments.calls)
    calls = {engine: Spread.of(run.rounds[engine]) for engine in (*ENGINES, "kernel")}
    overheads = {
        engine: Spread.of([a - b for a, b in zip(run.rounds[engine], run.rounds["kernel"], strict=True)])
        for engine in ENGINES
    }
    own = overheads["packager"].median
    rows = [(name, str(calls[name]), str(overheads[name]), f"{overheads[name].median / own:.1f}") for name in ENGINES]
    rows.append(("bare kernel", str(calls["kernel"]), "", ""))
    report = Report(
        title=f"Relu of 16 floats, 1 thread, {arguments.rounds} rounds of {arguments.calls} calls, median (quartiles)",
        header=("engine", "call, ns", "above the kernel, ns", "x packager"),
        rows=rows,
        figures={"call_ns": calls, "overhead_ns": overheads},
        bars=[Bar("overhead of session_run above its kernels", own, LIMIT_NS, "ns")],
    )
    return finish(report, arguments)


def _kernel_engine(bundle: Bundle, parts: Path, workdir: Path) -> str:
    from packager.bundle.reader import inspect

    ((_, primitive),) = inspect(bundle.path).manifest.primitives()
    library = workdir / "relu-kernel.so"
    subprocess.run(["gcc", "-shared", str(parts / "llvm" / "llvm.o"), "-o", str(library)], check=True)
    return f"kernel={library.resolve()},{primitive.symbol}"


if __name__ == "__main__":
    sys.exit(main())

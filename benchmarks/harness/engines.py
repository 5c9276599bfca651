"""The C programs that run a model: compile them; run several engines in turns, read what is printed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.measure import ROOT
from benchmarks.harness.models import Bundle
from benchmarks.harness.turns import MAX_DIFFERENCE

SOURCES = ROOT / "benchmarks" / "c"
PROGRAMS = ("compare", "serve")


@dataclass(frozen=True)
class Run:
    """What one process measured, by engine; nanoseconds."""

    phases: dict[str, dict[str, float]]
    differences: dict[str, float]
    rounds: dict[str, list[float]]


def compile_program(workdir: Path, name: str = "compare") -> Path:
    """Compile one of the C programs and return its path."""
    workdir.mkdir(parents=True, exist_ok=True)
    program = workdir / name
    includes = [f"-I{ROOT / 'runtime_stub' / 'include'}", "-isystem", str(_package("tvm_ffi") / "include")]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.c")) if path.stem not in PROGRAMS or path.stem == name]
    subprocess.run(["gcc", *flags, *includes, *sources, "-o", str(program), "-ldl", "-lm"], check=True)
    return program


def _package(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"the package {name} is not installed; the benchmarks need packager[build,test]")
    return Path(spec.origin).parent


def packager_engine(bundle: Bundle) -> str:
    """Return the argument of the C program for a bundle."""
    return f"packager={bundle.path.resolve()}"


def onnxruntime_library() -> Path:
    """Return onnxruntime's shared library."""
    (library,) = (_package("onnxruntime") / "capi").glob("libonnxruntime.so.*")
    return library


def onnxruntime_engine(model: Path) -> str:
    """Return the argument of the C program for an ONNX file."""
    return f"onnxruntime={onnxruntime_library()},{model.resolve()}"


def tvm_engine(module: Path) -> str:
    """Return the argument of the C program for a library that TVM exported."""
    ffi = _package("tvm_ffi") / "lib" / "libtvm_ffi.so"
    runtime = _package("tvm") / "lib" / "libtvm_runtime.so"
    return f"tvm={ffi},{runtime},{module.resolve()}"


def compare(
    program: Path,
    bundle: Bundle,
    engines: Sequence[str],
    *,
    rounds: int = 0,
    calls: int = 1,
) -> Run:
    """Run the engines in turns on one thread; see c/compare.c. Raises RuntimeError, also when they disagree."""
    tensors = [
        text
        for role, specs in (("-i", bundle.inputs), ("-o", bundle.outputs))
        for spec in specs
        for text in (role, str(spec))
    ]
    options = ["-r", str(rounds), "-n", str(calls)]
    done = subprocess.run([str(program), *options, *tensors, *engines], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program.name} ended with {done.returncode}\n{done.stderr}")
    run = Run(defaultdict(dict), {}, defaultdict(list))
    for line in done.stdout.splitlines():
        kind, engine, *values = line.split()
        if kind == "phase":
            run.phases[engine][values[0]] = float(values[1])
        elif kind == "difference":
            run.differences[engine] = float(values[0])
        else:
            run.rounds[engine].append(float(values[0]))
    for engine, difference in run.differences.items():
        if not difference < MAX_DIFFERENCE:  # NaN too
            raise RuntimeError(f"the outputs of {engine} differ from those of the first engine by {difference}")
    return run

"""Compiles the C programs that use bundles, and runs them natively or under qemu."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from .models import ROOT, Floats, Model

INCLUDE = ROOT / "runtime_stub" / "include"
HOST = ROOT / "samples" / "hosts" / "c" / "host.c"
SOURCES = Path(__file__).parent / "c"
CHECK_HEADER = ROOT / "tests" / "runtime" / "c"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Machine:
    """How to compile for a machine and what to run its programs with."""

    cc: str
    cxx: str
    nm: str
    runner: tuple[str, ...] = ()

    def require(self, *tools: str) -> None:
        """Skip the test if one of these tools (default: cc), or the runner, is missing."""
        require(*(tools or [self.cc]), *self.runner[:1])


NATIVE = Machine("gcc", "g++", "nm")
AARCH64 = Machine(
    *(f"aarch64-linux-gnu-{tool}" for tool in ("gcc", "g++", "nm")), ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
)


def require(*tools: str) -> None:
    """Skip the test if a tool is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def attempt(
    command: Sequence[str | Path], *, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command; it may fail."""
    argv = [str(part) for part in command]
    environment = os.environ | variables
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment, errors="replace"
    )


def execute(command: Sequence[str | Path], *, cwd: Path | None = None, **variables: str) -> str:
    """Run a command that must succeed and return its stdout."""
    done = attempt(command, cwd=cwd, **variables)
    line = " ".join(map(str, command))
    assert done.returncode == 0, f"{line}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compile_host(machine: Machine, folder: Path) -> Path:
    """Compile the C host program of the samples."""
    machine.require()
    program = folder / "host"
    execute([machine.cc, "-std=c99", "-O1", *WARNINGS, f"-I{INCLUDE}", HOST, "-o", program, "-ldl"])
    return program


def run_host(command: Sequence[str | Path], bundle: Path, rows: Floats, folder: Path) -> Floats:
    """Run a bundle with the host program that ``command`` starts and return its one output, flat."""
    source, result = folder / "input.f32", folder / "output.f32"
    rows.tofile(source)
    result.unlink(missing_ok=True)
    execute([*command, bundle, source, result])
    return np.fromfile(result, np.float32)


def check_host(command: Sequence[str | Path], bundle: Path, model: Model, batch: int, folder: Path) -> None:
    """Assert that a host program gets onnxruntime's output from a bundle."""
    rows = model.rows(batch)
    model.check(rows, run_host(command, bundle, rows, folder))

"""cutlass/int8.py as far as it goes without a GPU: its problems, and what it holds to be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Rounds what is expected as a kernel does, then spoils an element.
JUDGED = """
import torch
from benchmarks.cutlass import int8_run as run
from benchmarks.cutlass.int8_problems import CHECKS, SETS
run.DEVICE = "cpu"
torch.manual_seed(0)
for problem in (problem for name in CHECKS for problem in SETS[name]):
    operands = run.make(problem)
    want = run.expected(problem, operands)
    form, got = problem.form, want
    if form.out in ("int8", "uint8"):
        low, high = run.RANGES[form.out]
        got = (want.round() + form.zero).clamp(low if form.low is None else form.low, high)
    operands.y.copy_(got.to(operands.y.dtype))
    structure = run.structure_of(problem, operands)
    assert structure.scales.gain > 0
    assert not run.wrong(form, operands.y, want), problem.name
    spoiled = operands.y.double()
    spoiled[0, 0] += 100 if form.out == "int32" or spoiled[0, 0].mean() < 0 else -100
    assert run.wrong(form, spoiled.to(operands.y.dtype), want), problem.name
"""
CHOSEN = """
from benchmarks.cutlass.int8_build import candidates
from benchmarks.cutlass.int8_problems import SETS
for problem in (problem for problems in SETS.values() for problem in problems):
    kernels = candidates(problem)
    assert kernels, problem.name
    wanted = problem.family or "sm90"
    assert all(f"_{wanted}_" in kernel.name for kernel in kernels), problem.name
"""


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_results_are_judged() -> None:
    pytest.importorskip("torch")
    done = run("-c", JUDGED)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_problem_has_kernels_of_its_family() -> None:
    done = run("-c", CHOSEN)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--only", "nothing*"], "no problem matches"),
        (["build", "--jobs", "0"], "--jobs must be 1 or more"),
        (["run", "missing", "-o", "x.json"], "missing has no kernels.json"),
    ],
)
def test_wrong_uses(arguments: list[str], message: str) -> None:
    done = run("-m", "benchmarks.cutlass.int8", *arguments)
    assert done.returncode != 0
    assert message in done.stderr

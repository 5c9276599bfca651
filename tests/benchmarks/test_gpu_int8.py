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
from benchmarks.cutlass import int8_cases as cases
from benchmarks.cutlass.problems import CHECKS, INT8
torch.manual_seed(0)
for problem in (problem for name in CHECKS for problem in INT8.get(name, ())):
    case = cases.make_case(problem, "cpu", 1)
    form, want, (output,) = problem.form, case.want, case.outputs
    output.copy_((cases.rounded(form, want) if form.out in ("int8", "uint8") else want).to(output.dtype))
    assert case.structures[0].scales.gain > 0
    assert case.is_right(case.errors_of(case.result())), problem.name
    spoiled = output.double()
    spoiled[0, 0] += 100 if form.out == "int32" or spoiled[0, 0].mean() < 0 else -100
    assert not case.is_right(case.errors_of(spoiled.to(output.dtype))), problem.name
"""
CHOSEN = """
from benchmarks.cutlass.build import candidates
from benchmarks.cutlass.problems import INT8, select
for _, problem in select(INT8):
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
        (["build", "--only", "nothing*"], "no problem of"),
        (["run", "missing", "-o", "x.json"], "missing has no kernels.json"),
    ],
)
def test_wrong_uses(arguments: list[str], message: str) -> None:
    done = run("-m", "benchmarks.cutlass.int8", *arguments)
    assert done.returncode != 0
    assert message in done.stderr

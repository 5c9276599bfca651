"""Golden pairs: their tolerances, and what a build must survive, as code of a user's own that crashes or hangs."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from command_line import Cli, assert_refused, command, environment, tree
from graphs import graph, save
from op_libraries import SWISH, SWISH_C, make_library, model

import packager

pytestmark = pytest.mark.slow

SWISH_MODEL = "g (float[2,2] x) => (float[2,2] y) { y = com.acme.Swish(x) }"


def library(folder: Path, statement: str) -> Path:
    """Make a library whose operator does something of its own before it returns, and a model that uses it."""
    save(model(SWISH_MODEL), folder / "swish.onnx")
    return make_library(folder, {"swish.c": SWISH_C.replace("return 0;", f"{statement}\n  return 0;")}, SWISH)


@pytest.mark.parametrize(
    ("dtype", "precision", "rtol"),
    [("float16", None, 2e-2), ("bfloat16", None, 1e-1), ("float", "fp16", 2e-2), ("float", None, 1e-4)],
)
def test_tolerances_are_those_of_what_is_computed_in(
    tmp_path: Path, dtype: str, precision: str | None, rtol: float
) -> None:
    text = f"g ({dtype}[2,4] x, {dtype}[4,4] w) => ({dtype}[2,4] y) {{ y = MatMul(x, w) }}"
    built = packager.build(
        save(graph(text), tmp_path / "product.onnx"), tmp_path / "product.so", golden=0, precision=precision
    )
    golden = packager.load(built).manifest.golden
    assert golden is not None
    assert golden.rtol == rtol


def test_an_operator_that_crashes(warm_cli: Cli, tmp_path: Path) -> None:
    acme = library(tmp_path, "__builtin_trap();")
    done = warm_cli("build", tmp_path / "swish.onnx", "--op-library", acme, "--golden", "0")
    assert_refused(
        done, 5, "the bundle was killed by signal 4 as it ran the golden inputs", hint="library of operators"
    )
    assert tree(tmp_path / "cwd") == {}
    assert tree(tmp_path / "tmp") == {}


def test_an_operator_that_hangs_can_be_interrupted(tmp_path: Path) -> None:
    acme = library(tmp_path, "for (volatile int on = 1; on;) {}")
    (tmp_path / "cwd").mkdir()
    process = subprocess.Popen(
        command("build", tmp_path / "swish.onnx", "--op-library", acme, "--golden", "0"),
        cwd=tmp_path / "cwd",
        env=environment({}, tmp_path / "tmp"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    while "golden" not in process.stderr.readline():
        assert process.poll() is None
    while not list((tmp_path / "tmp").glob("packager-golden-*/inputs")):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert tree(tmp_path / "tmp") == {}


@pytest.mark.parametrize("options", [["--static", "--prefix", "acme"], ["-o", "libacme.a"], ["--header", "acme.toml"]])
def test_a_library_is_not_overwritten(warm_cli: Cli, tmp_path: Path, options: list[str]) -> None:
    acme = library(tmp_path, "")
    before = tree(tmp_path)
    done = warm_cli("build", tmp_path / "swish.onnx", "--op-library", acme, *options, cwd=tmp_path)
    assert_refused(done, 2, "exists and is not a", "it stays as it is", hint="give another output")
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before

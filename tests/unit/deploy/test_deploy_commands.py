"""The deploy commands in an application of their own, in real processes where import matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from sealing import HARDENED, build_bundle
from typer.testing import CliRunner, Result

from packager.bundle.isa.features import can_read_code
from packager.bundle.manifest import Manifest
from packager.cli import deploy, release, report
from packager.deploy.verify.verifier import verify
from packager.errors import PackagerError, UsageError
from packager.progress import Event, received
from packager.version import __version__

ROOT = Path(__file__).parents[3]


def call(*arguments: str | Path, fails: type[PackagerError] | None = None) -> Result:
    app = typer.Typer()
    for command in (*release.COMMANDS, *deploy.COMMANDS, *report.COMMANDS):
        app.command()(command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if fails:
        assert isinstance(result.exception, fails), result.output
    elif result.exit_code not in (0, 1, 2):
        raise AssertionError(result.output) from result.exception
    return result


def test_inspect(good: Path, archive: Path) -> None:
    text = call("inspect", good).stdout
    for expected in ("scale (onnx ai.onnx 17)", "[n, 2]", "pk_scale", "n 1..4", "sse2", "packager_bundle_v1"):
        assert expected in text
    assert "\x1b" not in text
    assert json.loads(call("inspect", good, "--json").stdout)["model"]["name"] == "scale"
    assert "static" in call("inspect", archive).stdout


def test_names_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    def rename(manifest: Manifest) -> Manifest:
        return replace(manifest, model=replace(manifest.model, name="net\x1b[2J\nverified\u202e"))

    text = call("inspect", build_bundle(tmp_path / "m.so", patch=rename)).stdout
    assert r"net\x1b[2J\nverified\u202e (onnx ai.onnx 17)" in text


def test_verify(good: Path, tmp_path: Path) -> None:
    result = call("verify", good, "--run")
    assert result.exit_code == 0
    assert "verified" in result.stdout
    bad = build_bundle(tmp_path / "bad.so", link=(*HARDENED, "-Wl,-z,execstack"))
    result = call("verify", bad)
    assert result.exit_code == 1
    assert "NOT accepted" in result.stdout
    assert "hint" in result.stdout
    result = call("verify", bad, "--json")
    assert result.exit_code == 1
    assert [finding["check"] for finding in json.loads(result.stdout)["findings"]] == ["elf.exec_stack"]
    call("verify", good, "--policy", "hermitic", fails=PackagerError)
    machine = tmp_path / "machine.json"
    machine.write_text(call("machine", "--json").stdout)
    assert call("verify", good, "--machine", machine, "--policy", "hermetic").exit_code == 0


def test_run(good: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "in.npz", x=x)
    out = tmp_path / "out.npz"
    for options in (("--input", f"x={tmp_path / 'x.npy'}"), ("--inputs", tmp_path / "in.npz")):
        result = call("run", good, *options, "-o", out)
        assert result.stdout == ""
        with np.load(out) as read:
            np.testing.assert_array_equal(read["y"], 2 * x, strict=True)
        out.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.npz", "x.npy"]
    text = call("run", good, "--random", "3").stdout
    assert "[4, 2]" in text
    assert "[3, 2]" in call("run", good, "--random", "3", "--dim", "n=3").stdout
    value = json.loads(call("run", good, "--inputs", tmp_path / "in.npz", "--json").stdout)
    assert value["schema_version"] == 1
    assert value["outputs"][0] == {
        "name": "y", "dtype": "float32", "shape": [3, 2], "min": 0.0, "max": 10.0, "mean": 5.0, "non_finite": 0
    }  # fmt: skip


def test_run_with_bad_arguments(good: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.npy"
    text.write_text("no array")
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 2)))
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    for options in (
        ("--input", "x"), ("--input", f"x={text}"), ("--input", f"x={tmp_path / 'absent.npy'}"),
        ("--input", f"x={tmp_path / 'x.npz'}"), ("--inputs", tmp_path / "x.npy"), ("--input", f"x={tmp_path}"),
        ("--input", f"x={tmp_path / 'pickled.npy'}"), ("--input", f"x={tmp_path / 'x.npy'}"), (),
        ("--random", "1", "--inputs", tmp_path / "x.npz"), ("--random", "1", "-o", tmp_path / "absent" / "o.npz"),
        ("--inputs", tmp_path / "x.npz", "--dim", "n=3"),
    ):  # fmt: skip
        result = call("run", good, *options, fails=PackagerError)
        assert isinstance(result.exception, PackagerError)
        assert result.exception.exit_code == 2
        assert result.stdout == ""


def test_bench_machine_and_schema(good: Path) -> None:
    assert "median" in call("bench", good, "--runs", "5").stdout
    assert json.loads(call("bench", good, "--runs", "5", "--json").stdout)["runs"] == 5
    assert "glibc" in call("machine").stdout
    assert json.loads(call("schema", "manifest").stdout)["$id"] == "urn:packager:manifest:1"
    assert "allowed_libraries" in call("schema", "policy").stdout
    assert call("schema", "other").exit_code == 2


def test_sizes_of_symbolic_dims(good: Path) -> None:
    """Work is known where the manifest counts it, at the maxima."""
    for dims, size, flops in (((), 4, 8), (("--dim", "n=4"), 4, 8), (("--dim", "n=1"), 1, None)):
        found = json.loads(call("bench", good, "--runs", "2", *dims, "--json").stdout)
        assert (found["dims"], found["flops"]) == ({"n": size}, flops)
        assert (found["gflops_per_second"] is None) == (flops is None)
    assert "GFLOP/s" not in call("bench", good, "--runs", "2", "--dim", "n=2").stdout


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (("n=5",), "n=5: outside of its bounds", "from 1 to 4"),
        (("n=0",), "n=0: outside of its bounds", "from 1 to 4"),
        (("m=2",), "m=2: no symbolic dim of the bundle", "valid dims: n"),
        (("n",), "n: not NAME=SIZE", "--dim batch=1"),
        (("n=1:4",), "n=1:4: not NAME=SIZE", "--dim batch=1"),
        (("n=1", "n=2"), "n=2: n is given twice", ""),
    ],
)
@pytest.mark.parametrize("command", [("bench",), ("run", "--random", "1")])
def test_sizes_that_a_bundle_has_not(
    good: Path, command: tuple[str, ...], given: tuple[str, ...], message: str, hint: str
) -> None:
    options = [part for size in given for part in ("--dim", size)]
    error = call(*command, good, *options, fails=UsageError).exception
    assert isinstance(error, UsageError)
    assert message in str(error)
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import packager", {"tvm", "numpy", "elftools", "typer", "rich", "ctypes"}),
        ("import packager; packager.verify; packager.inspect", {"tvm", "numpy", "elftools", "typer", "rich"}),
        ("import packager; packager.load", {"tvm", "elftools", "typer", "rich", "onnx", "torch", "ml_dtypes"}),
        ("import packager.cli.deploy, packager.cli.release", {"tvm", "numpy", "elftools", "onnx", "torch"}),
        ("import packager.pipeline.build", {"tvm", "numpy", "onnx", "jinja2", "torch"}),  # as far as a cached build
    ],
)
def test_imports(code: str, absent: set[str]) -> None:
    """What is not imported cannot be slow, nor missing on a target machine; times: benchmarks/bundle/import_time.py."""
    output = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ).stdout
    assert not absent & set(output.split())


def test_verify_reports_what_it_does(good: Path) -> None:
    events: list[Event] = []
    with received(events.append):
        assert verify(good).ok
    assert [event.text for event in events] == (["reading the code"] if can_read_code() else [])


def test_quiet_commands_say_nothing_of_what_they_do(good: Path, tmp_path: Path) -> None:
    assert call("verify", good, "--quiet").stderr == ""
    assert call("report", good, "-o", tmp_path / "page.html", "-q").stderr == ""
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


def test_sdk_says_where_the_header_is() -> None:
    found = json.loads(call("sdk", "--json").stdout)
    assert found == {"schema_version": 1, "version": __version__} | {
        name: str(ROOT / "runtime_stub" / name) for name in ("include", "cmake", "pkgconfig")
    }
    for option in ("include", "cmake", "pkgconfig"):
        assert call("sdk", f"--{option}").stdout == f"{found[option]}\n"
    assert [file.name for file in Path(found["pkgconfig"]).iterdir()] == ["packager.pc"]
    table = call("sdk").stdout
    assert all(name in table for name in ("include", "cmake", "pkgconfig", __version__))
    call("sdk", "--cmake", "--json", fails=UsageError)


def test_build_systems_read_the_version_of_packager() -> None:
    stub = ROOT / "runtime_stub"
    assert f"Version: {__version__}\n" in (stub / "pkgconfig" / "packager.pc").read_text()
    text = (stub / "cmake" / "packager-config-version.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{__version__}")' in text
    assert f'STREQUAL "{__version__.rpartition(".")[0]}"' in text


def test_a_machine_that_is_not_there_says_how_to_write_it(good: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        verify(good, machine=tmp_path / "absent.json")
    assert refused.value.hint == "write it with `packager machine --json` on that machine"


def test_a_report_has_a_name_by_default(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("report", good, "-q")
    assert done.output == f"{good.stem}-report.html\n"
    assert (tmp_path / done.output.strip()).read_text().startswith("<!doctype html>")
    assert call("report", good, "-q", "-o", tmp_path / "page.html").output == f"{tmp_path / 'page.html'}\n"

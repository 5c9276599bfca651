"""``packager build --timings`` and ``timings.json``: how long a build takes, and in what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Cli

import packager
from packager.codegen.timings import Timings

pytestmark = pytest.mark.slow
STAGES = ["import", "prepare", "partition", "lower", "plan", "generate", "link", "seal", "golden"]


def test_a_table_on_stderr_and_the_same_bundle(cli: Cli, models: Path, tmp_path: Path) -> None:
    options = (models / "mlp.onnx", "--golden", "0", "--no-cache", "-o")
    timed = cli("build", *options, tmp_path / "timed.so", "--timings")
    assert (timed.returncode, timed.stdout) == (0, f"{tmp_path / 'timed.so'}\n")
    lines = [line.split() for line in timed.stderr.split("\nstages\n")[1].splitlines()]
    rows = {line[0]: float(line[-1]) for line in lines[1 : lines.index([])]}
    assert {*STAGES, "other", "total"} == rows.keys()
    assert sum(rows.values()) == pytest.approx(2 * rows["total"], abs=0.01)
    assert ["tool", "output", "seconds"] in lines
    assert any(line[:2] == ["gcc", "entrypoint.o"] for line in lines)
    plain = cli("build", *options, tmp_path / "plain.so")
    assert "stages" not in plain.stderr
    assert (tmp_path / "timed.so").read_bytes() == (tmp_path / "plain.so").read_bytes()


def test_a_kept_work_folder_has_them_as_json(models: Path, tmp_path: Path) -> None:
    taken: list[Timings] = []
    packager.build(
        models / "mlp.onnx",
        tmp_path / "m.so",
        targets=["llvm", "ccompiler"],
        golden=0,
        keep_workdir=tmp_path / "work",
        cache=False,
        timings=taken.append,
    )
    found = json.loads((tmp_path / "work" / "timings.json").read_text())
    assert found == taken[0].to_json()
    assert found["schema_version"] == 1
    assert [stage["stage"] for stage in found["stages"]] == STAGES
    outputs = {(call["tool"], call["output"]) for call in found["calls"]}
    assert {("gcc", "ccompiler.o"), ("gcc", "src-session.o"), ("gcc", "bundle.so")} <= outputs
    assert all(call["seconds"] > 0 and "/" not in call["tool"] + call["output"] for call in found["calls"])


def test_a_bundle_from_the_cache_has_no_stages(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    taken: list[Timings] = []
    for name in ("first", "second"):
        packager.build(models / "mlp.onnx", tmp_path / f"{name}.so", name="m", timings=taken.append)
    assert taken[0].stages.keys() == {*STAGES} - {"golden"}
    assert taken[1].stages == {}
    assert {call.output for call in taken[1].calls} == {"--version"}
    assert 0 < taken[1].total < taken[0].total

"""``packager kernels``: kernels that are compiled once are found by builds of other machines, by content."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Cli
from graphs import graph, normal, save

import packager
from packager.backends.cutlass.portfolio import to_json
from packager.codegen.timings import Timings

TARGETS = ["cuda -arch=sm_80", "cutlass -candidates=1"]


def test_a_dry_run_lists_the_kernels(cli: Cli, tmp_path: Path) -> None:
    done = cli("kernels", "-o", tmp_path / "store", "--arch", "sm_90a", "--arch", "sm_80", "--dry-run", "--json")
    first, second = json.loads(done.stdout)["lists"]
    assert (first["archs"], second["archs"]) == (["sm_90a"], ["sm_80"])
    assert len(set(first["kernels"])) == len(first["kernels"]) > 10
    few = cli("kernels", "-o", tmp_path / "store", "--most", 2, "--dry-run").stdout
    assert few.split() == ["sm_90a:", "2", "kernels", *first["kernels"][:2]]
    own = ("--precision", "bf16", "--dry-run", "--json")
    (other,) = json.loads(cli("kernels", "-o", tmp_path / "store", *own).stdout)["lists"]
    assert len(other["kernels"]) == len(first["kernels"])
    assert not set(other["kernels"]) & set(first["kernels"])
    assert not (tmp_path / "store").exists()


def test_wrong_options_are_refused(cli: Cli, tmp_path: Path) -> None:
    for options, message in (
        (("--most", 0), "--most 0: at least 1"),
        (("--precision", "fp8"), "--precision 'fp8' is unknown"),
        (("--portfolio", "odd"), "cannot read the portfolio odd"),
        (("--arch", "sm_1"), "sm_1"),
    ):
        done = cli("kernels", "-o", tmp_path / "store", *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_builds_of_other_machines_find_the_kernels(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cutlass_library")
    from packager.backends.cutlass.gemm.few_rows import FewRowsGemm

    weights = {"w": normal(256, 256, dtype="float16")}
    model = save(
        graph("few (float16[4,256] x) => (float16[4,256] y) { y = MatMul(x, w) }", weights), tmp_path / "few.onnx"
    )
    store = tmp_path / "store"
    portfolio = {"hopper": [], "besides": [], "plain": [to_json(FewRowsGemm(8, "float16", "float16"))]}
    (tmp_path / "own.json").write_text(json.dumps(portfolio))
    fill = ("kernels", "-o", store, "--arch", "sm_80", "--portfolio", tmp_path / "own.json")
    home = {"XDG_CACHE_HOME": str(tmp_path / "filler")}
    assert cli(*fill, env=home).stdout == "sm_80: 1 kernels, 1 of them new\n"
    assert cli(*fill, env=home).stdout == "sm_80: 1 kernels, 0 of them new\n"

    def build(machine: str, name: str) -> Timings:
        taken: list[Timings] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        packager.build(
            model, tmp_path / f"{machine}.so", targets=TARGETS, name=name, shared_cache=store, timings=taken.append
        )
        return taken[0]

    def compiled(timings: Timings) -> list[str]:
        return [call.output for call in timings.calls if call.tool in ("nvcc", "cicc", "ptxas", "fatbinary")]

    first = build("first", "one")
    assert not [output for output in compiled(first) if "pk_" in output], "the kernel is in the store"
    assert packager.inspect(tmp_path / "first.so").manifest.selection[0].candidates
    renamed = build("renamed", "two")
    assert not [output for output in compiled(renamed) if output.endswith(".fatbin")], "TVM's kernels are in the store"
    again = build("second", "one")
    assert compiled(again) == [], "the bundle is in the store"
    assert np.array_equal(*(np.fromfile(tmp_path / f"{name}.so", np.uint8) for name in ("first", "second")))


@pytest.mark.slow
def test_a_cluster_compiles_kernels_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cutlass_library")
    pytest.importorskip("ray", reason="packager[cluster] is not installed")
    weights = {"w": normal(256, 256, dtype="float16")}
    model = save(
        graph("few (float16[4,256] x) => (float16[4,256] y) { y = MatMul(x, w) }", weights), tmp_path / "few.onnx"
    )
    tools: dict[str, list[str]] = {}
    for name, cluster in (("here", None), ("there", "ray")):
        taken: list[Timings] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))  # the cluster's too: it is started for this build
        packager.build(model, tmp_path / f"{name}.so", targets=TARGETS, on=cluster, timings=taken.append)
        tools[name] = [call.output for call in taken[0].calls if "pk_gemm_rows" in call.output]
    assert tools["here"]
    assert not tools["there"], "its own machine compiled no kernel"
    assert (tmp_path / "here.so").read_bytes() == (tmp_path / "there.so").read_bytes()

"""Profiles of CPU bundles, and how `packager bench` reports them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sealing import build_bundle
from typer.testing import CliRunner

import packager
from packager.bundle.manifest import Manifest
from packager.cli.main import app
from packager.deploy.load.session import Step
from packager.deploy.measure import profile
from packager.deploy.measure.bench import bench

X = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(tmp_path_factory.mktemp("profile") / "scale.so", defines=("PROFILE",))


def test_a_session_is_profiled(path: Path) -> None:
    with packager.load(path) as bundle, bundle.session() as session:
        assert session.profile([X]) == [("pk_scale", 1000, 4000), ("copy", 6000, 1000)]


def test_bench(path: Path) -> None:
    found = bench(path, runs=3, warmup=0, profile=True).profile
    assert found is not None
    assert found.runs == 3
    assert found.total_us == 5
    scale, copy = found.primitives
    assert (scale.symbol, scale.us, scale.gb_per_second) == ("pk_scale", 4.0, pytest.approx(128 / 4000))
    assert (copy.symbol, copy.bytes, copy.gflops_per_second) == ("copy", None, None)
    assert bench(path, runs=1, warmup=0).profile is None


def test_a_run_below_the_maxima_has_times_alone(path: Path) -> None:
    for size, flops in ((4, 8), (1, None)):
        found = bench(path, runs=3, warmup=0, profile=True, sizes={"n": size})
        assert found.profile is not None
        scale = found.profile.primitives[0]
        assert (scale.symbol, scale.us, found.flops, scale.flops) == ("pk_scale", 4.0, flops, flops)
        assert (scale.gb_per_second is None) == (flops is None)


def test_of_a_partition_the_last_function_has_the_rates(path: Path) -> None:
    with packager.load(path) as bundle:
        manifest = bundle.manifest
    whole = replace(manifest.backends[0].primitives[0], composite="c.scale", nodes=("n0",))
    first = replace(whole, symbol="pk_first", flops=0, bytes_read=0, bytes_written=0)
    other = replace(first, symbol="pk_other", nodes=("n1",))

    def of(*primitives: object) -> Manifest:
        return replace(manifest, backends=(replace(manifest.backends[0], primitives=primitives),))

    steps = [Step("pk_first", 0, 30), Step("pk_scale", 30, 10), Step("pk_other", 40, 5)]
    found = profile.summarize(of(first, whole, other), [steps])
    times = {item.symbol: item for item in found.primitives}
    assert times["pk_scale"].us == 0.01
    assert times["pk_scale"].gb_per_second == pytest.approx(128 / 40)
    assert times["pk_scale"].gflops_per_second == pytest.approx(8 / 40)
    assert (times["pk_first"].us, times["pk_first"].backend, times["pk_first"].flops) == (0.03, "llvm", None)
    assert times["pk_other"].gb_per_second == 0
    assert sum(item.share for item in found.primitives) == pytest.approx(1)


def test_command(path: Path, tmp_path: Path) -> None:
    written, trace = tmp_path / "profile.json", tmp_path / "trace.json"
    result = CliRunner().invoke(
        app, ["bench", str(path), "--runs", "2", "--profile-json", str(written), "--trace", str(trace)]
    )
    assert result.exit_code == 0, result.output
    assert "Primitives by time (2 of 2), 5.0 us in all" in result.stdout
    assert json.loads(written.read_text())["schema_version"] == 1
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["process_name", "thread_name", "pk_scale", "copy"]
    assert events[1]["args"] == {"name": "CPU"}

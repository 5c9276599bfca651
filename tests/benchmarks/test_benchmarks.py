"""Each benchmark runs with tiny settings and reports what it should; its figures mean nothing here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
Figures = dict[str, Any]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and bundles, made once for all benchmarks."""
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture
def run_benchmark(workdir: Path, tmp_path: Path) -> Callable[..., Figures]:
    """Run a benchmark; returns the figures of its JSON file."""

    def run(name: str, *options: object) -> Figures:
        output = tmp_path / "results.json"
        argv = [sys.executable, "-m", f"benchmarks.{name}", "--workdir", workdir, "-o", output, *options]
        done = subprocess.run([*map(str, argv)], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert not done.stderr, done.stderr
        assert "| ---" in done.stdout
        result = json.loads(output.read_text())
        assert result["schema_version"] == 1
        assert result["command"].startswith(f"python -m benchmarks.{name}")
        assert str(workdir) not in output.read_text()
        assert str(ROOT) not in output.read_text()
        for each in result["bars"]:
            assert each["met"] == ((each["value"] < each["limit"]) != each["at_least"])
        assert done.returncode == (0 if all(each["met"] for each in result["bars"]) else 1)
        figures: Figures = result["figures"]
        return figures

    return run


@pytest.mark.slow
def test_overhead(run_benchmark: Callable[..., Figures]) -> None:
    calls = run_benchmark("cpu.overhead", "--rounds", 3, "--block", 0.01)["call_ns"]
    assert {spread["count"] for spread in calls.values()} == {3}
    assert 0 < calls["kernel"]["median"] < calls["packager"]["median"] < calls["onnxruntime"]["median"]


@pytest.mark.slow
def test_load(run_benchmark: Callable[..., Figures]) -> None:
    figures = run_benchmark("bundle.load", "--model", "digits", "--runs", 2, "--tvm-runs", 1)
    assert set(figures) == {"packager", "onnxruntime", "tvm"}
    for values in figures.values():
        assert values["load_and_session_ms"]["median"] > 0
        assert values["first_run_ms"]["median"] > 0
    assert figures["tvm"]["load_and_session_ms"]["count"] == 1


@pytest.mark.slow
def test_size(run_benchmark: Callable[..., Figures], workdir: Path) -> None:
    sizes = run_benchmark("bundle.size", "--models", "relu", "digits")
    for name, parts in sizes.items():
        assert parts["file"] == (workdir / f"{name}_b1.so").stat().st_size
        assert parts["file"] == sum(parts.values()) - parts["file"] - parts["overhead"]
        assert min(parts.values()) >= 0
    assert sizes["relu"]["constants"] == 0 < sizes["digits"]["constants"]


@pytest.mark.slow
def test_build_time(run_benchmark: Callable[..., Figures]) -> None:
    figures = run_benchmark("bundle.build_time", "--models", "relu", "--runs", 1)["relu"]
    assert 0 < figures["unchanged_s"]["median"] < figures["cold_s"]["median"]
    assert "importing the model" in figures["stages_s"]
    assert sum(spread["median"] for spread in figures["stages_s"].values()) == pytest.approx(
        figures["cold_s"]["median"], rel=0.1
    )


@pytest.mark.slow
def test_cpu(run_benchmark: Callable[..., Figures]) -> None:
    options = ["--models", "mlp", "--batch", 1, "--rounds", 2, "--block", 0.01]
    engines = ["packager", "onnxruntime", "tvm", "iree"]
    run_benchmark("cpu.compare", *options, "--threads", 1, "--engines", *engines)
    figures = run_benchmark("cpu.compare", *options, "--threads", 2, "--engines", *engines[:2], "--append")
    one, two = figures["configurations"]
    places = [(record["model"], record["batch"], record["threads"]) for record in (one, two)]
    assert places == [("mlp", 1, 1), ("mlp", 1, 2)]
    assert list(one["engines"]) == engines
    assert list(two["engines"]) == engines[:2]
    for entry in [*one["engines"].values(), *two["engines"].values()]:
        assert "not installed" in entry.get("failed", "") or (entry["ms"]["count"] == 2 and entry["difference"] < 1e-4)
    assert "--append" in two["command"]
    assert one["over_packager"]["onnxruntime"]["median"] > 0
    assert set(figures["geomeans"]) == {"all", "batch 1, 1 thread(s)", "batch 1, 2 thread(s)"}


@pytest.mark.slow
def test_dynamic_dims(run_benchmark: Callable[..., Figures]) -> None:
    pytest.importorskip("torch")
    options = ["--models", "mlp", "--rounds", 2, "--block", 0.01]
    run_benchmark("cpu.dynamic_dims", *options, "--sizes", "batch=37", "--threads", 1)
    figures = run_benchmark("cpu.dynamic_dims", *options, "--sizes", "batch=1", "--threads", 2, "--append")
    one, many = figures["configurations"]
    assert [(record["sizes"], record["threads"]) for record in (one, many)] == [("batch=1", 2), ("batch=37", 1)]
    for record in (one, many):
        assert record["over_fixed"] == pytest.approx(record["fastest_ms"]["dynamic"] / record["fastest_ms"]["fixed"])
        assert record["of_medians"]["count"] == 2


@pytest.mark.slow
def test_cpu_gemm(run_benchmark: Callable[..., Figures]) -> None:
    figures = run_benchmark("cpu.gemm", "--problems", "8x32x16", "--rounds", 2, "--block", 0.01)["problems"]["8x32x16"]
    assert set(figures["gflops"]) == {"peak", "packager", "onnxruntime"}
    assert 0 < figures["share"]["packager"]["median"] < 100
    assert not figures["failed"]


@pytest.mark.slow
def test_cpu_carried(workdir: Path, tmp_path: Path, run_benchmark: Callable[..., Figures]) -> None:
    folder = tmp_path / "carried"
    words = ["--workdir", workdir, "pack", "--folder", folder, "--models", "mlp", "--batch", 1, "--gemm", "8x32x16"]
    argv = [*map(str, [sys.executable, "-m", "benchmarks.cpu.other_machine", *words])]
    subprocess.run(argv, cwd=ROOT, check=True)
    again = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.stderr == f"error: {folder} is there already\nhint: remove it, or name another with --folder\n"
    product, model = run_benchmark("cpu.other_machine", "run", "--folder", folder, "--rounds", 2, "--block", 0.01)[
        "configurations"
    ]
    assert (product["model"], product["threads"]) == ("gemm_8x32x16", 1)
    assert str(tmp_path) not in (tmp_path / "results.json").read_text()
    assert 0 < product["share_of_peak"]["packager"]["median"] < 100
    assert model["over_packager"]["median"] > 0


@pytest.mark.slow
def test_an_engine_that_fails_is_reported(workdir: Path) -> None:
    from benchmarks.cpu.compare import measure, report, thresholds
    from benchmarks.cpu.engines import Settings, compile_program
    from benchmarks.cpu.models import make

    settings = Settings(workdir, ("nothing",))
    compile_program(workdir)
    model = make("mlp", 1, workdir / "models")
    record = measure(model, 1, ["packager", "onnxruntime"], settings, Namespace(rounds=1, block=0.01, seconds=1))
    assert "nothing" in record["engines"]["packager"]["failed"]
    assert record["engines"]["onnxruntime"]["ms"]["median"] > 0
    assert record["over_packager"] == {}
    assert [each.met for each in thresholds([record])] == [False]
    found = report([record], [record], ["packager", "onnxruntime"])
    assert found.rows[0][3] == "failed"
    assert "mlp, batch 1, 1 thread(s): packager failed" in found.notes[0]


@pytest.mark.slow
def test_an_engine_with_other_outputs_is_refused(workdir: Path) -> None:
    from dataclasses import replace

    from benchmarks.cpu.engines import Settings, compile_program, onnxruntime
    from benchmarks.cpu.models import make
    from benchmarks.harness.turns import EngineError

    settings = Settings(workdir, ())
    compile_program(workdir)
    model = make("mlp", 1, workdir / "models")
    wrong = replace(model, outputs={name: array + 1 for name, array in model.outputs.items()})
    with pytest.raises(EngineError, match="outputs differ"):
        onnxruntime(wrong, 1, settings)()
    assert not list(workdir.glob("turns-*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "squeezenet", "shufflenet", "mobilenet_v2"])
def test_an_onnx_file_in_torch(workdir: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import numpy as np

    from benchmarks.cpu.models import make
    from benchmarks.cpu.torch_models import from_onnx

    model = make(name, 2, workdir / "models")
    (image,), (expected,) = model.inputs.values(), model.outputs.values()
    assert image.shape[0] == expected.shape[0] == 2
    with torch.no_grad():
        found = from_onnx(model.path)(torch.from_numpy(image)).numpy()
    assert np.max(np.abs(found - expected)) < 1e-4 * np.max(np.abs(expected))


def test_bars_of_whole_models() -> None:
    from benchmarks.cpu.compare import geomeans, thresholds

    def record(model: str, ratio: float, batch: int = 1) -> dict[str, Any]:
        return {
            "model": model,
            "batch": batch,
            "threads": 1,
            "engines": {"packager": {}, "onnxruntime": {}},
            "over_packager": {"onnxruntime": {"median": ratio}},
        }

    records = [record("mlp", 4.0), record("bert", 1.0), record("bert", 0.9, batch=8), record("resnet50_qdq", 0.5)]
    assert geomeans(records)["all"] == pytest.approx(3.6 ** (1 / 3))
    assert geomeans(records)["without the small models"] == pytest.approx(0.9**0.5)
    found = {each.what.split(", ", 1)[1]: (each.value, each.met) for each in thresholds(records)}
    assert found["geometric mean of 3"] == (pytest.approx(3.6 ** (1 / 3)), True)
    assert found["worst: bert, batch 8, 1 thread(s)"] == (0.9, False)
    assert found["small: mlp, batch 1, 1 thread(s)"] == (4.0, True)
    assert found["int8: resnet50_qdq, batch 1, 1 thread(s)"] == (0.5, False)


@pytest.mark.parametrize("name", ["compare", "gemm", "other_machine"])
def test_documented_commands_are_understood(name: str) -> None:
    """Those of the README and of the script's own text."""
    import importlib
    import re
    import shlex

    module = importlib.import_module(f"benchmarks.cpu.{name}")
    texts = (module.__doc__, (BENCHMARKS / "README.md").read_text())
    commands = [line for text in texts for line in re.findall(rf"python -m benchmarks\.cpu\.{name}([^`#\n]*)", text)]
    assert len(commands) > 2
    for command in commands:
        module.parse(shlex.split(command))


@pytest.mark.slow
def test_errors(run_benchmark: Callable[..., Figures]) -> None:
    layers = (
        "conv2d_c16",
        "conv2d_c64_batch",
        "conv2d_c256",
        "conv2d_k7s2_c3",
        "conv3d_k3_c16",
        "tconv2d_k3s2",
        "tconv2d_k64s32",
        "tconv3d_k3s2",
    )
    figures = run_benchmark("cpu.errors", "--layers", *layers)
    for name, kinds in figures["layers"].items():
        for kind, errors in kinds.items():
            assert 0 < errors["packager"] <= 2 * errors["onnxruntime"], (name, kind)


@pytest.mark.slow
def test_zoo(run_benchmark: Callable[..., Figures]) -> None:
    figures = run_benchmark(
        "zoo.compare", "--models", "nbeats", "--threads", 1, "--rounds", 3, "--block", 0.01, "--cold"
    )
    (record,) = figures["configurations"]
    assert record["over_packager"]["onnxruntime"]["median"] > 0
    assert record["build_s"] > 0
    for engine in ("packager", "onnxruntime"):
        assert 0 <= record["engines"][engine]["difference"] < 1e-4


def test_the_zoo_has_many_architectures_and_no_name_twice() -> None:
    from benchmarks.gpu.zoo.cases import WIDE
    from benchmarks.zoo.models import ENTRIES, ZOO

    assert len(ENTRIES) == len(ZOO) > 60
    everything = [entry.name for entry in (*ENTRIES, *WIDE)]
    assert len(everything) == len(set(everything))


@pytest.mark.slow
def test_import_time(run_benchmark: Callable[..., Figures]) -> None:
    figures = run_benchmark("bundle.import_time", "--runs", 2)
    assert {spread["count"] for spread in figures.values()} == {2}
    assert all(spread["median"] > 0 for spread in figures.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "http_server"])
def test_serving(name: str, run_benchmark: Callable[..., Figures]) -> None:
    if name == "http_server":
        pytest.importorskip("uvicorn")
    figures = run_benchmark(f"serving.{name}", "--models", "digits", "--seconds", 2, "--rounds", 2)["digits"]
    load, latency = figures["load"], figures["latency_us"]
    assert load["errors"] == 0 < load["requests"]
    assert len(load["resident_mib"]) >= 2
    assert latency["request"]["median"] > latency["bare"]["median"] > 0
    assert latency["own"]["count"] == 2


@pytest.mark.slow
def test_a_report_in_a_browser(run_benchmark: Callable[..., Figures]) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))):
        pytest.skip("no Chromium on PATH")
    figures = run_benchmark("bundle.report", "--model", "digits", "--runs", 1)
    assert 0.05 < figures["megabytes"] < 1
    assert {"open", "graph", "functions", "memory", "search"} <= figures["seconds"].keys()


def test_growth_of_memory_is_that_after_its_first_quarter() -> None:
    from benchmarks.serving.figures import Latency, Load, thresholds

    latency = Latency.of([(120.0, 80.0, 20.0)] * 3)
    assert latency.ratio.median == 1.2
    leaking = Load(60, 1000, 0, [50.0, 90.0, *range(100, 160)])
    assert leaking.growth_mib > 30
    assert [each.met for each in thresholds("model", leaking, latency, 1.0)] == [True, False, False]
    steady = Load(60, 1000, 1, [50.0, 90.0, *[100.0] * 60])
    assert [each.met for each in thresholds("model", steady, latency, 25.0)] == [False, True, True]


def test_spread_is_median_and_quartiles() -> None:
    from benchmarks.harness.measure import Spread

    assert Spread.of([5, 1, 2, 4, 3]) == Spread(3, 2, 4, 5)
    assert str(Spread.of([0.00123, 0.00123])) == "0.00123 (0.00123 to 0.00123)"
    with pytest.raises(ValueError, match="no samples"):
        Spread.of([])


def test_a_bar_is_missed_at_its_limit() -> None:
    from benchmarks.harness.measure import Threshold

    assert Threshold("load", 2.99, 3, "ms").met
    assert str(Threshold("load", 3, 3, "ms")) == "MISSED: load: 3.00 ms, the threshold is 3.00 ms"


def test_a_bar_of_at_least_is_met_at_its_limit() -> None:
    from benchmarks.harness.measure import Threshold

    assert not Threshold("speed", 1.14, 1.15, "", True).met
    assert str(Threshold("speed", 1.15, 1.15, "", True)) == "met: speed: 1.15, the threshold is 1.15"


def test_tables_are_markdown() -> None:
    from benchmarks.harness.measure import format_table

    lines = format_table(("engine", "ns"), [("packager", "27"), ("tvm", "1,234")]).splitlines()
    assert lines == ["| engine   |    ns |", "| -------- | ----: |", "| packager |    27 |", "| tvm      | 1,234 |"]

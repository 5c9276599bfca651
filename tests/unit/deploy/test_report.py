"""What a report of real small bundles says, and that nothing of a bundle is more than text in it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sealing import build_bundle
from typer.testing import CliRunner, Result

from packager.bundle.graph.call_graph import COPY, CallGraph, GraphCall, GraphTensor, RunGraph
from packager.bundle.manifest import Dim, Manifest, TensorSpec
from packager.bundle.selection import Alternative, PlacementChoice, PlacementRecord, Selection
from packager.bundle.tuning_records import MeasuredPlacement, Record, Timing, make_records
from packager.cli.main import app
from packager.deploy.measure.candidates import Tuned
from packager.deploy.measure.placement.result import AlternativeTime, ChoiceTimes, PlacementResult, PlanTime
from packager.deploy.measure.tune import TuneResult
from packager.errors import PackagerError

ATTACK = '</script><img src=x onerror="alert(1)">'
TENSORS = (
    GraphTensor("input", 0, 32, "float32", ("n", 2)),
    GraphTensor("constant", 0, 64, "float32", (16,)),
    GraphTensor("arena", 0, 32, "float32", ("n", 2)),
    GraphTensor("workspace", 64, 128, "uint8", (128,)),
    GraphTensor("output", 0, 32, "float32", ("n", 2)),
)
CALLS = (
    GraphCall("pk_scale", ("Mul_0",), (0, 1), (2, 3), {}),
    GraphCall(COPY, (), (2,), (4,), {}),
)
GRAPH = CallGraph(1, (RunGraph("scale", {}, TENSORS, CALLS),))
PROFILE = {
    "schema_version": 1,
    "runs": 2,
    "total_us": 5.0,
    "primitives": [{"symbol": "pk_scale", "us": 4.0}, {"symbol": "copy", "us": 1.0}],
    "trace": [["pk_scale", 1.0, 4.0], ["copy", 6.0, 1.0]],
}


class Elements(HTMLParser):
    """Counts the elements of a page, and keeps the texts of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.tags[-1] if self.tags else "", []).append(data)


def packager(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def page(path: Path) -> dict[str, Any]:
    """Return the data of a page, as its scripts read them."""
    text = path.read_text()
    found: dict[str, Any] = json.loads(text.split('id="data">')[1].split("</script>")[0])
    return found


def make_report(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    output = tmp_path / "report.html"
    result = packager("report", *arguments, "-o", output)
    assert result.exit_code == 0, (result.output, result.exception)
    return page(output)


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return build_bundle(folder / "scale.so", defines=("PROFILE",), graph=GRAPH.to_json())


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return path


def test_a_bundle(scale: Path, tmp_path: Path) -> None:
    (bundle,) = make_report(tmp_path, scale)["bundles"]
    figures = {figure["label"]: figure["value"] for figure in bundle["figures"]}
    assert figures["calls per run"] == 2
    assert figures["work per run"] == 8
    assert figures["file"] == scale.stat().st_size
    assert figures["median run"] is None
    (function,) = bundle["functions"]
    assert (function["symbol"], function["backend"], function["us"], function["roof"]) == (
        "pk_scale", "llvm", None, None,
    )  # fmt: skip
    assert function["code"] > 0
    assert [(b["kind"], b["functions"], b["calls"]) for b in bundle["backends"]] == [("llvm", 1, 1)]
    assert {"About", "Tensors", "Requirements", "Licenses"} <= {table["title"] for table in bundle["tables"]}
    assert bundle["verify"]["checks"][0]["name"] == "integrity"


def test_the_graph(scale: Path, tmp_path: Path) -> None:
    (bundle,) = make_report(tmp_path, scale)["bundles"]
    flow = bundle["runs"][0]["flow"]
    assert [(node["kind"], node["label"]) for node in flow["nodes"]] == [
        ("input", "x"), ("call", "multiply"), ("copy", "copy"), ("output", "y"),
    ]  # fmt: skip
    assert [(edge["source"], edge["target"], edge["tensor"]) for edge in flow["edges"]] == [
        (0, 1, 0), (1, 2, 2), (2, 3, 4),
    ]  # fmt: skip
    assert [tensor["name"] for tensor in flow["tensors"]] == ["x", "scale", "", "", "y"]
    assert flow["calls"] == 2


def test_the_arena(scale: Path, tmp_path: Path) -> None:
    (bundle,) = make_report(tmp_path, scale)["bundles"]
    arena = bundle["runs"][0]["arena"]
    assert (arena["end"], arena["peak"], arena["live"]) == (192, 160, [160, 32])
    assert [(b["tensor"], b["offset"], b["first"], b["last"], b["backend"]) for b in arena["blocks"]] == [
        (2, 0, 0, 1, "llvm"), (3, 64, 0, 0, "llvm"),
    ]  # fmt: skip


def test_times_and_roofline(scale: Path, profile: Path, tmp_path: Path) -> None:
    (bundle,) = make_report(tmp_path, scale, "--profile", profile, "--peak-gflops", 100, "--peak-gb", 0.064)["bundles"]
    (function,) = bundle["functions"]
    assert (function["us"], function["share"]) == (4.0, 0.8)
    assert function["gflops_per_second"] == pytest.approx(8 / 4000)
    assert function["gb_per_second"] == pytest.approx(128 / 4000)
    assert function["roof"] == pytest.approx(0.5)  # 128 bytes take 2 us at that rate
    assert [node["us"] for node in bundle["runs"][0]["flow"]["nodes"]] == [None, 4.0, 1.0, None]
    assert bundle["measured"]["about"] == "2 runs, profile.json"


def test_a_profile_of_other_calls_gives_each_its_share(scale: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE | {"trace": []}))
    (bundle,) = make_report(tmp_path, scale, "--profile", path)["bundles"]
    assert [node["us"] for node in bundle["runs"][0]["flow"]["nodes"]] == [None, 4.0, 1.0, None]


def test_measured_here(scale: Path, tmp_path: Path) -> None:
    (bundle,) = make_report(tmp_path, scale, "--run")["bundles"]
    assert bundle["functions"][0]["us"] == 4.0  # what the bundle reports
    assert bundle["measured"]["about"] == "30 runs, 1 thread"
    assert bundle["figures"][0]["value"] > 0


def test_what_bench_prints_is_a_profile_too(scale: Path, tmp_path: Path) -> None:
    result = packager("bench", scale, "--runs", 2, "--profile", "--json")
    (tmp_path / "bench.json").write_text(result.stdout)
    (bundle,) = make_report(tmp_path, scale, "--profile", tmp_path / "bench.json")["bundles"]
    assert bundle["figures"][0]["value"] == pytest.approx(json.loads(result.stdout)["median_ms"], rel=1e-5)


def with_candidates(manifest: Manifest) -> Manifest:
    selection = (Selection("pk_scale", "scale 2", "r1", ("fast", "slow"), 1),)
    return dataclasses.replace(manifest, selection=selection)


def test_records(tmp_path: Path) -> None:
    record = Record("scale 2", "r1", "a CPU", (Timing("fast", 0.0, 0.1), Timing("slow", 2.5, 0.1)))
    placement = MeasuredPlacement("ab" * 32, "r1", "a CPU", 1, {"p": "llvm(multiply)"}, 10.0, {"llvm alone": 12.0})
    records = tmp_path / "records.json"
    records.write_bytes(make_records([record], [placement]).to_json())
    path = build_bundle(tmp_path / "scale.so", graph=GRAPH.to_json(), patch=with_candidates)
    found = make_report(tmp_path, path, records)
    (candidates,) = found["bundles"][0]["functions"][0]["candidates"]
    assert (candidates["device"], candidates["stale"]) == ("a CPU", False)
    assert [(c["name"], c["used"], c["slower_us"]) for c in candidates["candidates"]] == [
        ("fast", False, 0.0), ("slow", True, 2.5),
    ]  # fmt: skip
    assert [plan["name"] for plan in found["records"]["placements"][0]["plans"]] == ["fastest", "llvm alone"]
    assert not found["records"]["placements"][0]["matches"]
    alone = make_report(tmp_path, records)
    assert (alone["bundles"], alone["title"]) == ([], "tuning records")
    assert alone["records"] == found["records"]


def with_choice(manifest: Manifest) -> Manifest:
    ways = (Alternative("llvm(multiply)", ("llvm",)), Alternative("other(multiply)", ("llvm",)))
    choice = PlacementChoice("choice_0", "multiply 2", "r1", (("Mul_0",),), ways, 0)
    return dataclasses.replace(manifest, placement=PlacementRecord("trial", "ab" * 32, (choice,), ()))


def test_alternatives_have_the_times_that_tune_prints(tmp_path: Path) -> None:
    times = (AlternativeTime("other(multiply)", 0.0, 0.0), AlternativeTime("llvm(multiply)", 2.5, 0.5))
    choice = ChoiceTimes("choice_0", "multiply 2", 1, "other(multiply)", "llvm(multiply)", times)
    plans = (PlanTime("llvm alone", 12.0, single=True),)
    placement = PlacementResult("ab" * 32, "r1", 1, (choice,), 12.0, 9.5, None, plans, 3, ())
    record = Record("scale 2", "r1", "a CPU", (Timing("fast", 0.0, 0.1),))
    result = TuneResult("x.so", "a CPU", 12.0, 9.5, (Tuned("pk_scale", "slow", 1, record),), placement)
    (tmp_path / "tune.json").write_text(json.dumps(result.to_json()))
    path = build_bundle(
        tmp_path / "scale.so",
        graph=GRAPH.to_json(),
        patch=with_choice,
        defines=("PROFILE",),
    )
    found = make_report(tmp_path, path, tmp_path / "tune.json")
    (shown,) = found["bundles"][0]["choices"]
    assert [(way["name"], way["used"], way["measured_best"], way["slower_us"]) for way in shown["alternatives"]] == [
        ("llvm(multiply)", True, False, 2.5), ("other(multiply)", False, True, 0.0),
    ]  # fmt: skip
    assert [(plan["name"], plan["us"]) for plan in found["records"]["placements"][0]["plans"]] == [
        ("fastest", 9.5), ("llvm alone", 12.0),
    ]  # fmt: skip
    assert found["records"]["records"][0]["device"] == "a CPU"


def test_a_work_folder(scale: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(scale, work / "bundle.so")
    (work / "timings.json").write_text(json.dumps({"stages": [{"stage": "import", "seconds": 0.5}], "calls": []}))
    row = {"backend": "c", "operators": ["add"], "sites": [{"nodes": ["Add_0"]}], "undone": "too small"}
    (work / "2-partitions.json").write_text(json.dumps({"partitions": [row, row | {"undone": None}]}))
    (bundle,) = make_report(tmp_path, work)["bundles"]
    assert bundle["name"] == "work"
    assert bundle["stages"] == [{"name": "import", "seconds": 0.5}]
    assert [(item["nodes"], item["reason"]) for item in bundle["undone"]] == [(["Add_0"], "too small")]


def test_two_bundles(scale: Path, profile: Path, tmp_path: Path) -> None:
    other = build_bundle(tmp_path / "other.so")
    found = make_report(tmp_path, scale, other, "--profile", profile)
    assert found["title"] == "scale.so and other.so"
    one, two = found["bundles"]
    assert (one["measured"] is None, two["measured"] is None) == (False, True)
    assert (len(one["runs"]), two["runs"]) == (1, [])  # the other has no graph
    assert [f["label"] for f in one["figures"]] == [f["label"] for f in two["figures"]]


def test_a_file_name_that_is_no_utf8(scale: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd\udcff.so"
    odd.write_bytes(scale.read_bytes())
    make_report(tmp_path, odd)


def test_it_is_the_same_twice(scale: Path, profile: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(scale, folder / "scale.so")
        make_report(folder, folder / "scale.so", "--profile", profile)
    assert (folders[0] / "report.html").read_bytes() == (folders[1] / "report.html").read_bytes()


def hostile(manifest: Manifest) -> Manifest:
    return dataclasses.replace(
        manifest,
        model=dataclasses.replace(manifest.model, name=ATTACK, producer=ATTACK),
        inputs=(TensorSpec(ATTACK, "float32", ("n", 2)),),
        dims=(Dim("n", 1, 4),),
    )


def test_names_of_a_bundle_are_text(tmp_path: Path) -> None:
    calls = (dataclasses.replace(CALLS[0], nodes=(ATTACK,)), CALLS[1])
    graph = CallGraph(1, (RunGraph(ATTACK, {}, TENSORS, calls),))
    path = build_bundle(tmp_path / "<b>&'.so", graph=graph.to_json(), patch=hostile)
    data = make_report(tmp_path, path)
    html = (tmp_path / "report.html").read_text()
    elements = Elements()
    elements.feed(html)
    assert elements.tags.count("script") == 2
    assert not {"img", "b"} & set(elements.tags)
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    flow = data["bundles"][0]["runs"][0]["flow"]
    assert flow["tensors"][0]["name"] == ATTACK
    assert flow["nodes"][1]["nodes"] == [ATTACK]
    assert data["title"] == "<b>&'.so"


def test_the_page_loads_nothing_and_allows_only_its_own_script(scale: Path, tmp_path: Path) -> None:
    make_report(tmp_path, scale)
    elements = Elements()
    elements.feed((tmp_path / "report.html").read_text())
    assert not [value for name, value in elements.attributes if name in ("src", "href")]
    content = next(v for n, v in elements.attributes if n == "content" and v and v.startswith("default-src"))
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (text,) = [text for text in elements.texts[tag] if not text.startswith("{") and text.strip()]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in content
    scripts = next(text for text in elements.texts["script"] if "use strict" in text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(", scripts
    )
    assert set(re.findall(r"https?://[^\s\"]+", scripts)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.so"], "cannot read"),
        (["{bundle}", "{bundle}", "{bundle}"], "compares two bundles, not 3"),
        (["{folder}"], "is no work folder of a build"),
        (["{text}"], "is not a tuning records file"),
        (["{bundle}", "--profile", "{text}"], "is no profile of packager bench"),
        (["{bundle}", "--profile", "missing.json"], "cannot read"),
        (["{bundle}", "--profile", "{profile}", "--profile", "{profile}"], "2 profiles for 1 bundles"),
        (["{bundle}", "--profile", "{profile}", "--run"], "exclude each other"),
        (["{records}", "--run"], "nothing to run"),
    ],
)
def test_wrong_use(scale: Path, profile: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "records.json").write_bytes(make_records([]).to_json())
    (tmp_path / "text.json").write_text('{"a": 1}')
    places = {
        "bundle": scale, "folder": tmp_path, "profile": profile,
        "records": tmp_path / "records.json", "text": tmp_path / "text.json",
    }  # fmt: skip
    given = [argument.format(**places) for argument in arguments]
    result = packager("report", *given, "-o", tmp_path / "report.html")
    assert isinstance(result.exception, PackagerError)
    assert result.exception.exit_code == 2
    assert message in result.exception.message
    assert not (tmp_path / "report.html").exists()


def test_a_page_draws_so_many_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Path) -> None:
    for module in ("flow", "memory"):
        monkeypatch.setattr(f"packager.deploy.report.{module}.MOST_CALLS", 1)
    (bundle,) = make_report(tmp_path, scale)["bundles"]
    run = bundle["runs"][0]
    assert (run["flow"]["calls"], run["flow"]["left_out"], len(run["arena"]["live"])) == (1, 1, 1)


def test_a_large_graph_is_a_page_of_a_size_that_browsers_like(tmp_path: Path) -> None:
    """A decoder's: 800 calls, each with a residual, a weight and a mask that all read."""
    tensors = [TENSORS[0], TENSORS[1], *(GraphTensor("arena", 64 * i, 64, "float32", ("n", 16)) for i in range(800))]
    calls = [
        GraphCall("pk_scale", (f"layers.{i // 10}.query.MatMul",), (0, 1, max(i - 4, 0), i + 1), (i + 2,), {})
        for i in range(800)
    ]  # fmt: skip
    graph = CallGraph(1, (RunGraph("scale", {}, tuple(tensors), tuple(calls)),))
    path = build_bundle(tmp_path / "scale.so", graph=graph.to_json())
    (bundle,) = make_report(tmp_path, path)["bundles"]
    assert bundle["runs"][0]["flow"]["calls"] == 800
    assert (tmp_path / "report.html").stat().st_size < 1 << 20

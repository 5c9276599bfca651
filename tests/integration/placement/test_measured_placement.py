"""Measured placement: trials of backends that take stated times are tuned to the optimum that follows from these."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli, command, environment
from graphs import graph, save

import packager
from benchmarks.zoo.ship_placement import ship
from packager.bundle.tuning_records import MeasuredPlacement, Records, make_records, read_records
from packager.deploy.load.selection import by_records, write_selected
from packager.deploy.measure.random_inputs import random_inputs
from packager.deploy.measure.tune import tune as measure
from packager.pipeline.explain import explain
from packager.pipeline.options import BuildOptions
from packager.placement import shipped
from tests.integration.placement.placing import parse

pytestmark = pytest.mark.slow

# TVM takes 160, 160, 720 and 360 us for these operators. Operators of one kind are one choice: names are its first.
CHAIN = """
    chain (float[64,1024] x) => (float[64,1024] y) {
        quarter = Constant <value = float {0.25}> ()
        s = Mul (x, quarter)
        a = Sin (s)
        b = Cos (a)
        c = Sinh (b)
        d = Cosh (c)
        y = Add (d, s)
    }
"""


@dataclass(frozen=True)
class Case:
    """A model's Targets, and the parts of the fastest placement. ``alternatives`` of a choice are enough for it."""

    targets: tuple[str, ...]
    fastest: frozenset[str]
    alternatives: int = 4


APART = Case(
    ("llvm", "spina -us=sin:60,cos:140,sinh:60,cosh:140", "spinb -us=sin:140,cos:60,sinh:140,cosh:60"),
    frozenset({"spina(sin)", "spinb(cos)", "spina(sinh)", "spinb(cosh)"}),
)
# spina is slower for sin, and for cos, but not for both: cos takes 20 us right behind sin.
COUPLED = Case(
    (
        "llvm",
        "spinb -us=sin:110,cos:110,sinh:100,cosh:100",
        "spina -us=sin:130,cos:130,sinh:400,cosh:400 -after=sin:20,cos:20",
    ),
    frozenset({"spina(sin)", "spina(cos)", "spinb(sinh)", "spinb(cosh)"}),
)
# spinmerge is faster for sin and cos if it has both in one partition, and slower for each alone, and for the others.
MERGED = Case(
    (
        "llvm",
        "spinmerge -us=sin:200,cos:200,sinh:300,cosh:300 -merged=sin:40,cos:40",
        "spina -us=sin:90,cos:90,sinh:60,cosh:60",
    ),
    frozenset({"spinmerge(sin+cos)", "spina(sinh)", "spina(cosh)"}),
    alternatives=40,
)
CASES = {"apart": APART, "coupled": COUPLED, "merged": MERGED}


def build(folder: Path, case: Case, output: str = "trial.so", **options: Any) -> Path:
    model = save(graph(CHAIN), folder / "chain.onnx")
    options = {"place": "trial", "alternatives": case.alternatives, **options}
    return packager.build(model, folder / output, targets=case.targets, **options)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: build(tmp_path_factory.mktemp(name), case) for name, case in CASES.items()}


def chosen(path: Path) -> set[str]:
    """Return the parts of the alternatives that a trial uses, without the addition at the end, which TVM always has."""
    choices = packager.inspect(path).manifest.choices
    names = [choice.alternatives[choice.chosen].name for choice in choices]
    return {part for name in names for part in name.split(" | ")} - {"llvm(add)"}


def provided(path: Path) -> set[str]:
    """Return the functions of a bundle that the spinning backends compiled, named as parts are."""
    functions = packager.inspect(path).manifest.primitives()
    return {f"{kind}({'+'.join(function.ops)})" for kind, function in functions if kind.startswith("spin")}


def tune(cli: Cli, bundle: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return cli("tune", bundle, "--rounds", 10, *arguments)


@pytest.fixture(scope="module")
def records(trials: dict[str, Path]) -> Records:
    """Records of a short run."""
    return measure(trials["apart"], rounds=7, seconds=1).records


@pytest.mark.parametrize("name", list(CASES))
def test_the_optimum_is_found_and_kept(trials: dict[str, Path], name: str, tmp_path: Path, cli: Cli) -> None:
    """In the copy that is bound at once, in one bound by the records, and in a build by them."""
    trial, case = trials[name], CASES[name]
    records, bound, again = (tmp_path / file for file in ("records.json", "bound.so", "again.so"))
    done = tune(cli, trial, "-o", records, "--bind", bound, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["placement"]
    assert chosen(bound) == case.fastest
    assert result["plan"] is None
    assert result["us"] < min(plan["us"] for plan in result["plans"])  # by how much says nothing on a busy machine
    assert result["gain_over_best_single"] > 1
    for choice in result["choices"]:
        assert choice["alternatives"][0]["slower_us"] == 0
        assert {choice["chosen"], choice["greedy"]} <= {way["name"] for way in choice["alternatives"]}
    assert statistics.median(choice["second_us"] for choice in result["choices"]) > 3
    assert not list(tmp_path.glob("*.journal"))
    assert packager.verify(bound).ok
    done = cli("tune", trial, "--tuning", records, "--bind", again)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert again.read_bytes() == bound.read_bytes()
    (placement,) = read_records([records]).placements
    assert placement.us == pytest.approx(result["us"], abs=0.01)
    built = build(tmp_path, case, "model.so", place=records)
    assert provided(built) == case.fastest
    manifest = packager.inspect(built).manifest
    assert not manifest.choices
    assert built.stat().st_size < trial.stat().st_size
    assert build(tmp_path, case, "twice.so", place=records).read_bytes() == built.read_bytes()
    inputs = random_inputs(manifest, 2)
    np.testing.assert_array_equal(packager.load(built).run(inputs)["y"], packager.load(bound).run(inputs)["y"])


def test_records_of_half_precision_place_a_build_with_golden_values(tmp_path: Path) -> None:
    """The reference that golden values are computed by is a build in float32, whose regions the records do not know."""
    trial = build(tmp_path, APART, precision="fp16")
    records = tmp_path / "records.json"
    records.write_bytes(measure(trial, rounds=7, seconds=1).records.to_json())
    built = build(tmp_path, APART, "model.so", precision="fp16", place=records, golden=0)
    manifest = packager.inspect(built).manifest
    assert manifest.golden is not None
    assert not manifest.choices
    assert packager.verify(built, run=True).ok


def test_candidates_are_measured_with_the_choices(tmp_path: Path) -> None:
    """Of functions that the fastest placement calls; the slow candidate is the usual one, and both plans have it."""
    targets = (
        "llvm",
        "spina -us=sin:60,cos:100,sinh:60,cosh:100 -slower=40",
        "spinb -us=sin:150,cos:50,sinh:150,cosh:50",
    )
    trial = build(tmp_path, Case(targets, frozenset()))
    symbols = {entry.symbol: entry.problem for entry in packager.inspect(trial).manifest.selection}
    assert sorted(symbols.values()) == [f"spin {name} 65536" for name in ("cos", "cosh", "sin", "sinh")]
    result = measure(trial, rounds=10)
    assert {(record.problem, record.chosen) for record in result.records.records} == {
        ("spin sin 65536", "fast"),
        ("spin sinh 65536", "fast"),
    }
    assert {tuned.before for tuned in result.functions} == {"slow"}
    bound = tmp_path / "bound.so"
    with bound.open("wb") as stream:
        write_selected(trial, stream, by_records(packager.inspect(trial).manifest, result.records))
    assert chosen(bound) == {"spina(sin)", "spinb(cos)", "spina(sinh)", "spinb(cosh)"}
    used = {entry.problem: entry.candidates[entry.chosen] for entry in packager.inspect(bound).manifest.selection}
    assert used == {problem: "fast" if "sin" in problem else "slow" for problem in symbols.values()}
    assert packager.verify(bound).ok
    records = tmp_path / "records.json"
    records.write_bytes(result.records.to_json())
    linked = packager.build(tmp_path / "chain.onnx", tmp_path / "linked.so", targets=targets, place=records)
    assert {entry.problem: entry.candidates for entry in packager.inspect(linked).manifest.selection} == {
        "spin sin 65536": ("fast",),
        "spin sinh 65536": ("fast",),
    }


def outputs(bundle: packager.Bundle, digits: Sequence[int], inputs: Any) -> np.ndarray:
    choices = bundle.manifest.choices
    names = {c.name: c.alternatives[digit].name for c, digit in zip(choices, digits, strict=True)}
    with bundle.session(selection=names) as session:
        return session.run(inputs)["y"]


def test_every_vector_gives_equal_outputs(trials: dict[str, Path]) -> None:
    with packager.load(trials["apart"]) as bundle:
        inputs = random_inputs(bundle.manifest, 1)
        s = 0.25 * inputs["x"].astype(np.float64)
        expected = np.cosh(np.sinh(np.cos(np.sin(s)))) + s
        vectors = list(itertools.product(*(range(len(choice.alternatives)) for choice in bundle.manifest.choices)))
        assert len(vectors) == 3**4
        for vector in vectors:
            np.testing.assert_allclose(outputs(bundle, vector, inputs), expected, rtol=1e-5, atol=1e-5)


def test_an_interrupted_run_goes_on(trials: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    trial, records = trials["apart"], tmp_path / "records.json"
    arguments = ["tune", trial, "--rounds", 10, "-o", records]
    process = subprocess.Popen(
        command(*arguments),
        env=environment({}, tmp_path / "tmp"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "] profiles: " in line:
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait() == 130
    journal = tmp_path / "records.json.journal"
    assert f"measurements are kept in {journal}: the same command goes on" in rest
    assert not records.exists()
    before = journal.read_bytes()
    done = cli(*arguments[:-1], tmp_path / "records.json", "--seed", 3)
    assert done.returncode == 2
    assert "keeps the measurements of an interrupted run that differs in: seed" in done.stderr
    assert journal.read_bytes() == before
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert "measurements of an interrupted run are kept" in done.stderr
    assert records.exists()
    assert not journal.exists()


def test_a_bound_on_the_time(trials: dict[str, Path]) -> None:
    """The plans are compared in any case, so what is chosen is never slower than they are."""
    result = measure(trials["coupled"], rounds=10, seconds=0.01).placement
    assert result is not None
    assert result.us <= 1.05 * min(plan.us for plan in result.plans)
    assert result.vectors == len(result.plans)
    assert result.warnings[0].startswith("time was over")


def test_the_tables(trials: dict[str, Path], cli: Cli) -> None:
    done = tune(cli, trials["apart"])
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert rows[1] == "choice regions us per run alternative"
    assert rows[2].startswith("choice_0 1 +0.00 +- 0.00 chosen")
    assert rows[2].endswith("spina(sin)")
    assert any(row.startswith("chosen ") and " us 1.000 " in row for row in rows)
    assert any(row.startswith("spina alone ") and "greedy" in row for row in rows)
    assert "] plans: " in done.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"model": "0" * 64}, "no placement of this model", "another model, batch, dim or list of Targets"),
        ({"revision": "packager 0"}, "for other code than this build's", "build the model with --place trial"),
        ({"choices": {"sin": "spina(sin)"}}, "unknown problem: 'sin'", "valid problems: sin float32"),
        ({"edited": "spinb(cosh2)"}, "unknown alternative of cosh", "spinb(cosh) | llvm(add)"),
    ],
)
def test_records_that_do_not_fit(
    trials: dict[str, Path],
    records: Records,
    tmp_path: Path,
    cli: Cli,
    change: dict[str, Any],
    message: str,
    hint: str,
) -> None:
    (placement,) = records.placements
    if "edited" in change:
        edited = {p: change["edited"] if p.startswith("cosh") else way for p, way in placement.choices.items()}
        change = {"choices": edited}
    file, bound = tmp_path / "records.json", tmp_path / "bound.so"
    file.write_bytes(replace(records, placements=(replace(placement, **change),)).to_json())
    done = cli("tune", trials["apart"], "--tuning", file, "--bind", bound)
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr
    assert not bound.exists()


def test_records_of_another_machine_are_bound_with_a_note(
    trials: dict[str, Path], records: Records, tmp_path: Path, cli: Cli
) -> None:
    (placement,) = records.placements
    file, bound = tmp_path / "records.json", tmp_path / "bound.so"
    file.write_bytes(replace(records, placements=(replace(placement, device="a CPU of 1999"),)).to_json())
    done = cli("tune", trials["apart"], "--tuning", file, "--bind", bound)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("note: the placement was measured on a CPU of 1999; this is ")
    assert bound.exists()


NETWORK = """
    network (float[1,{channels},16,16] x) => (float[1,{channels},16,16] y) {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Relu (a)
    }}
"""


def test_shipped_records_place_equal_and_near_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with 8 channels; 12 are near, 20 are not. What is chosen is not what a greedy build takes."""

    def model(channels: int) -> Path:
        weights = {"w": np.ones((channels, channels, 3, 3), np.float32)}
        path = tmp_path / f"{channels}.onnx"
        path.write_bytes(parse(NETWORK.format(channels=channels), weights).SerializeToString())
        return path

    targets = ["llvm", "ccompiler"]
    small = model(8)
    trial = packager.inspect(packager.build(small, tmp_path / "trial.so", targets=targets, place="trial")).manifest
    chosen = {c.problem: way.name for c in trial.choices for way in c.alternatives if way.backends == ("llvm",)}
    assert trial.placement is not None
    measured = MeasuredPlacement(trial.placement.model, trial.choices[0].revision, "a CPU", 1, chosen, 1.0, {})
    records = tmp_path / "records.json"
    records.write_bytes(make_records([], [measured]).to_json())
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "devices")
    shipped.FOLDER.mkdir()
    (shipped.FOLDER / "a_cpu.json").write_bytes(ship([small], records, targets).to_json())

    def sources(channels: int) -> set[str]:
        options = BuildOptions(model(channels), targets=targets, place="shipped", place_device="a CPU")
        found = explain(options, candidates=True).choices
        assert found is not None
        return {region.source for region in found.regions if len(region.alternatives) > 1}

    assert sources(8) == {"shipped, measured on a CPU"}
    (near,) = sources(12)
    assert near.startswith("shipped, measured on a CPU for ")
    assert near.endswith("conv2d+relu+permute_dims float32[1,8,16,16]")
    assert sources(20) == {"greedy"}
    placed = packager.build(model(12), tmp_path / "placed.so", targets=targets, place="shipped", place_device="a CPU")
    manifest = packager.inspect(placed).manifest
    assert {kind for kind, _ in manifest.primitives()} == {"llvm"}
    assert manifest.placement is not None
    assert manifest.placement.rule == "records"

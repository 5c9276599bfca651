"""Alternatives without libraries of the target machine, of what a backend takes that needs one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.bundle.tuning_records import MeasuredPlacement, make_records
from packager.deploy.measure.random_inputs import random_inputs
from packager.errors import UsageError
from packager.pipeline.build import build
from tests.integration.placement.placing import parse

CHAIN = "chain (float[64] x) => (float[64] z) { a = Sin (x) b = Cos (a) c = Sinh (b) z = Cosh (c) }"
LIBRARY = "spinlib -us=sin:10,cos:10"
OTHER = "spina -us=cos:10,sinh:10"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    path.write_bytes(parse(CHAIN).SerializeToString())
    return path


def placement_of(bundle: Path) -> Any:
    found = packager.inspect(bundle).manifest.placement
    assert found is not None
    return found


def run_all(bundle: Path) -> list[np.ndarray]:
    """Return the output of each combination of alternatives."""
    with packager.load(bundle) as loaded:
        inputs = random_inputs(loaded.manifest, 0)
        choices = loaded.manifest.choices
        found = []
        for number in range(2 ** len(choices)):
            chosen = {c.name: c.alternatives[number >> place & 1].name for place, c in enumerate(choices)}
            with loaded.session(selection=chosen) as session:
                found.append(next(iter(session.run(inputs).values())))
        return found


def test_greedy_builds_have_alternatives_without_libraries(model: Path, tmp_path: Path) -> None:
    bundle = build(model, tmp_path / "chain.so", targets=["llvm", LIBRARY, OTHER])
    found = placement_of(bundle)
    assert (found.rule, found.plans) == ("greedy", ())
    ways = [[way.name for way in choice.alternatives] for choice in found.choices]
    assert ways == [["spinlib(sin)", "llvm(sin)"], ["spinlib(cos)", "spina(cos)"]]
    assert [choice.chosen for choice in found.choices] == [0, 0]
    first, *others = run_all(bundle)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-6)
    assert packager.verify(bundle).ok


def test_what_takes_precedence_over_the_library_needs_no_choice(model: Path, tmp_path: Path) -> None:
    bundle = build(model, tmp_path / "chain.so", targets=["llvm", OTHER, LIBRARY])
    (choice,) = placement_of(bundle).choices
    assert [way.name for way in choice.alternatives] == ["spinlib(sin)", "llvm(sin)"]


def test_records_of_what_needs_a_library_keep_the_alternative(model: Path, tmp_path: Path) -> None:
    """Sin was fastest by the library, and cos without it."""
    targets = ["llvm", LIBRARY, OTHER]
    trial = placement_of(build(model, tmp_path / "trial.so", targets=targets, place="trial"))
    fastest = {"spinlib(sin)", "spina(cos)", "spina(sinh) | llvm(cosh)"}  # which TVM would fuse with its own sinh
    chosen = {c.problem: way.name for c in trial.choices for way in c.alternatives if way.name in fastest}
    revision = trial.choices[0].revision
    measured = MeasuredPlacement(trial.model, revision, "a CPU", 1, chosen, 1.0, {"llvm alone": 2.0})
    records = tmp_path / "records.json"
    greedy = {c.problem: c.alternatives[0].name for c in trial.choices}
    other = replace(measured, device="another CPU", choices=greedy)
    records.write_bytes(make_records([], [measured, other]).to_json())
    with pytest.raises(UsageError, match="several placements of this model: a CPU with 1 thread, another CPU with 1"):
        build(model, tmp_path / "chain.so", targets=targets, place=records)
    bundle = build(model, tmp_path / "chain.so", targets=targets, place=records, place_device="a CPU", place_threads=1)
    found = placement_of(bundle)
    assert found.rule == "records"
    assert [[way.name for way in choice.alternatives] for choice in found.choices] == [["spinlib(sin)", "llvm(sin)"]]
    assert {kind for kind, _ in packager.inspect(bundle).manifest.primitives()} == {"spinlib", "spina", "llvm"}


def test_one_target_has_the_code_generator_as_its_alternative(model: Path, tmp_path: Path) -> None:
    bundle = build(model, tmp_path / "chain.so", targets=["llvm", LIBRARY])
    ways = {way.name for choice in placement_of(bundle).choices for way in choice.alternatives}
    assert ways == {"spinlib(sin)", "llvm(sin)", "spinlib(cos) | llvm(sinh+cosh)", "llvm(cos+sinh+cosh)"}


def test_an_output_is_written_by_each_alternative(tmp_path: Path) -> None:
    """Without a copy behind the choice; where the model reads the output further on, too."""
    path = tmp_path / "twice.onnx"
    text = "chain (float[64] x) => (float[64] y, float[64] z) { a = Sin (x) y = Sinh (a) z = Cosh (y) }"
    path.write_bytes(parse(text).SerializeToString())
    targets = ["llvm", "spinlib -us=sinh:10,cosh:10"]
    bundle = build(path, tmp_path / "twice.so", targets=targets, keep_workdir=tmp_path / "work")
    steps = json.loads((tmp_path / "work" / "4-plan.json").read_text())["steps"]
    assert [step for step in steps if "symbol" not in step] == []
    first, *others = run_all(bundle)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-6)
    inputs = {"x": np.linspace(0, 1, 64, dtype=np.float32)}
    with packager.load(bundle) as loaded:
        found = loaded.run(inputs)
    wanted = np.sinh(np.sin(inputs["x"]))
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["z"], np.cosh(wanted), rtol=1e-5)

"""Choices: all alternatives of a model's regions in one bundle, of which a session runs one each."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.bundle.tuning_records import MeasuredPlacement, make_records
from packager.deploy.measure.random_inputs import random_inputs
from packager.errors import UsageError
from packager.pipeline.build import build
from packager.progress import Event
from tests.integration.placement.placing import parse

RESIDUAL = """
    residual (float[1,3,9,7] x) => (float[1,5] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w1)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1]> (b, w2)
        d = Add (c, b)
        e = Relu (d)
        f = GlobalAveragePool (e)
        g = Flatten (f)
        h = Gemm <transB = 1> (g, w3)
        y = Softmax (h)
    }
"""


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (5, 8)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trial")
    path = folder / "residual.onnx"
    path.write_bytes(parse(RESIDUAL, weights()).SerializeToString())
    return build(path, folder / "trial.so", targets=["llvm", "ccompiler"], place="trial")


def outputs(bundle: Any, digits: tuple[int, ...], inputs: Any) -> Any:
    chosen = zip(bundle.manifest.choices, digits, strict=True)
    with bundle.session(selection={c.name: c.alternatives[digit].name for c, digit in chosen}) as session:
        return next(iter(session.run(inputs).values()))


def test_every_vector_gives_equal_outputs(trial: Path) -> None:
    with packager.load(trial) as bundle:
        choices = bundle.manifest.choices
        assert len(choices) >= 4
        inputs = random_inputs(bundle.manifest, 0)
        vectors = list(itertools.product(*(range(len(choice.alternatives)) for choice in choices)))
        first = outputs(bundle, vectors[0], inputs)
        for vector in random.Random(0).sample(vectors[1:], min(32, len(vectors) - 1)):
            np.testing.assert_allclose(outputs(bundle, vector, inputs), first, rtol=1e-5, atol=1e-6)


def test_what_tvm_fuses_with_a_region_belongs_to_it(tmp_path: Path) -> None:
    """Exp is fused into the product if TVM has that; the other one is fused into the sum whoever has the product."""
    text = """fused (float[8,16] x) => (float[8] y) {
        a = MatMul (x, w1)
        b = Exp (a)
        c = MatMul (b, w2)
        d = Exp (c)
        axes = Constant <value = int64[1] {1}> ()
        y = ReduceSum <keepdims = 0> (d, axes)
    }"""
    rng = np.random.default_rng(0)
    constants = {name: rng.standard_normal((16, 16)).astype(np.float32) for name in ("w1", "w2")}
    path = tmp_path / "fused.onnx"
    path.write_bytes(parse(text, constants).SerializeToString())
    targets = ["llvm", "ccompiler -operators=dense"]
    manifest = packager.inspect(build(path, tmp_path / "trial.so", targets=targets, place="trial")).manifest
    ways = [{way.name for way in choice.alternatives} for choice in manifest.choices]
    assert ways == [{"ccompiler(matmul) | llvm(exp)", "llvm(matmul+exp)"}, {"ccompiler(matmul)", "llvm(matmul)"}]
    made = {primitive.ops for kind, primitive in manifest.primitives() if kind == "llvm"}
    assert {("matmul", "exp"), ("exp",), ("matmul",), ("exp", "sum")} == made


def test_the_manifest_says_who_computes_what(trial: Path) -> None:
    found = packager.inspect(trial).manifest
    assert found.placement is not None
    assert found.placement.rule == "trial"
    assert [plan.name for plan in found.placement.plans] == ["ccompiler alone", "llvm alone"]
    greedy, llvm = found.placement.plans
    assert found.digits()[: len(found.choices)] == bytes(greedy.digits)
    for choice, own, other in zip(found.choices, greedy.digits, llvm.digits, strict=True):
        assert choice.alternatives[own].backends == ("ccompiler",)
        assert choice.alternatives[other].backends == ("llvm",)
    assert packager.verify(trial).ok


def test_only_the_chosen_alternatives_run(trial: Path) -> None:
    with packager.load(trial) as bundle:
        choices, inputs = bundle.manifest.choices, random_inputs(bundle.manifest, 0)
        providers = {primitive.symbol: kind for kind, primitive in bundle.manifest.primitives()}
        for plan in bundle.manifest.placement.plans:
            chosen = zip(choices, plan.digits, strict=True)
            with bundle.session(selection={c.name: c.alternatives[digit].name for c, digit in chosen}) as session:
                called = {step.symbol for step in session.profile(inputs) if step.symbol in providers}
            assert {providers[symbol] for symbol in called} == {plan.name.removesuffix(" alone")}


def test_a_trial_of_one_target_is_warned_of(trial: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    build(trial.parent / "residual.onnx", tmp_path / "x.so", targets=["llvm"], place="trial", progress=events.append)
    (warning,) = (event.text for event in events if event.warning)
    assert warning == "a trial of one Target has nothing to choose from: add others with -t"


def test_inspect_shows_what_is_used(trial: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "packager", "inspect", trial], check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert any("choice_0" in line and "1 of 4" in line and "ccompiler(" in line for line in lines), done.stdout


def test_unknown_alternatives_are_refused(trial: Path) -> None:
    with packager.load(trial) as bundle, pytest.raises(UsageError, match="has no candidate 'cutlass"):
        bundle.session(selection={bundle.manifest.choices[0].name: "cutlass(conv2d)"})


def write_records(path: Path, trial: Path, digits: tuple[int, ...]) -> Path:
    """Write the records that measuring a trial gives if a vector is the fastest."""
    placement = packager.inspect(trial).manifest.placement
    assert placement is not None
    chosen = {c.problem: c.alternatives[digit].name for c, digit in zip(placement.choices, digits, strict=True)}
    revision = placement.choices[0].revision
    measured = MeasuredPlacement(placement.model, revision, "a CPU", 1, chosen, 1.0, {"ccompiler alone": 2.0})
    path.write_bytes(make_records([], [measured]).to_json())
    return path


def test_a_build_with_records_links_what_they_name(trial: Path, tmp_path: Path) -> None:
    """It computes what the trial computes with that vector, needs no choice, and equal builds have equal bytes."""
    choices = packager.inspect(trial).manifest.choices
    vector = tuple(number % len(choice.alternatives) for number, choice in enumerate(choices))
    records = write_records(tmp_path / "records.json", trial, vector)
    model = trial.parent / "residual.onnx"
    first, second = (
        build(
            model, tmp_path / name, targets=["llvm", "ccompiler"], place=records, keep_workdir=tmp_path / f"{name}.work"
        )
        for name in ("first.so", "second.so")
    )
    assert first.read_bytes() == second.read_bytes()
    with packager.load(trial) as measured, packager.load(first) as linked:
        found = linked.manifest
        inputs = random_inputs(found, 0)
        np.testing.assert_allclose(
            next(iter(linked.run(inputs).values())), outputs(measured, vector, inputs), rtol=1e-6, atol=1e-7
        )
        assert found.placement is not None
        assert (found.placement.rule, found.choices, found.placement.plans) == ("records", (), ())
        wanted = {kind for c, digit in zip(choices, vector, strict=True) for kind in c.alternatives[digit].backends}
        assert {kind for kind, _ in found.primitives()} == wanted


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["llvm"], "the records hold no placement of this model"),
        (["llvm", "ccompiler -winograd=0"], "for other code than this build's"),
    ],
)
def test_records_of_another_model_are_refused(trial: Path, tmp_path: Path, targets: list[str], message: str) -> None:
    choices = packager.inspect(trial).manifest.choices
    records = write_records(tmp_path / "records.json", trial, (0,) * len(choices))
    model = trial.parent / "residual.onnx"
    with pytest.raises(UsageError, match=message):
        build(model, tmp_path / "model.so", targets=targets, place=records)
    assert not (tmp_path / "model.so").exists()


ANOTHER = "k = Conv <pads = [1, 1, 1, 1]> (e, w4)"
DEEPER = RESIDUAL.replace("f = GlobalAveragePool (e)", f"{ANOTHER} f = GlobalAveragePool (k)")


def test_regions_of_another_model_are_placed_as_equal_ones_were(trial: Path, tmp_path: Path) -> None:
    """All regions of the measured model, computed by llvm there, are in a model that has one more."""
    llvm = next(plan for plan in packager.inspect(trial).manifest.placement.plans if plan.name == "llvm alone")
    records = write_records(tmp_path / "records.json", trial, llvm.digits)
    path = tmp_path / "deeper.onnx"
    own = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
    path.write_bytes(parse(DEEPER, weights() | {"w4": own}).SerializeToString())
    bundle = build(path, tmp_path / "deeper.so", targets=["llvm", "ccompiler"], place=records)
    (composite,) = {p.composite for kind, p in packager.inspect(bundle).manifest.primitives() if kind == "ccompiler"}
    assert "conv2d" in str(composite)

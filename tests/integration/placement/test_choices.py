"""Choices: all alternatives of a model's regions in one bundle, of which a session runs one each."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.deploy.measure.random_inputs import random_inputs
from packager.errors import UsageError
from packager.pipeline.build import build
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


def test_unknown_alternatives_are_refused(trial: Path) -> None:
    with packager.load(trial) as bundle, pytest.raises(UsageError, match="has no candidate 'cutlass"):
        bundle.session(selection={bundle.manifest.choices[0].name: "cutlass(conv2d)"})

"""Decays in half precision: exponentials of differences of running sums, as state space models have them, and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import graph, normal, save

import packager
from tests.integration.models.test_fronts import saved

TOKENS, WIDTH = 64, 16
TEXT = """
    g (float[n,64,16] x) => (float[n,64,16] y, float[n,64] last) {
        axis = Constant <value = int64 {1}> ()
        first = Constant <value = int64[1] {1}> ()
        second = Constant <value = int64[1] {2}> ()
        none = Constant <value = float {-inf}> ()
        products = MatMul (x, steps)
        flat = Squeeze (products, second)
        logs = Abs (flat)
        decays = Neg (logs)
        sums = CumSum (decays, axis)
        rows = Unsqueeze (sums, second)
        columns = Unsqueeze (sums, first)
        differences = Sub (rows, columns)
        masked = Where (mask, differences, none)
        weights = Exp (masked)
        y = MatMul (weights, x)
        all = Exp (sums)
        last = Identity (all)
    }
"""


@pytest.mark.parametrize("size", [0.1, 30.0])
def test_decays_are_those_of_float32(tmp_path: Path, size: float) -> None:
    """Sums reach thousands, whose neighbors differ by more than one in float16."""
    steps = (size * normal(WIDTH, 1)).astype(np.float16).astype(np.float32)
    weights = {"steps": steps, "mask": np.tril(np.ones((TOKENS, TOKENS), bool))}
    model = save(graph(TEXT, weights), tmp_path / "decays.onnx")
    bundle = packager.build(model, tmp_path / "decays.so", targets=["llvm"], dims={"n": (1, 4)}, precision="fp16")
    x = np.random.default_rng(0).standard_normal((2, TOKENS, WIDTH)).astype(np.float16).astype(np.float32)
    got = packager.load(bundle).run({"x": x})
    sums = -np.abs((x @ steps)[..., 0].astype(np.float16).astype(np.float64)).cumsum(1)
    decays = np.exp(np.where(weights["mask"], sums[:, :, None] - sums[:, None], -np.inf))
    np.testing.assert_allclose(got["y"], decays @ x, rtol=0, atol=0.01)
    np.testing.assert_allclose(got["last"], np.exp(sums), rtol=0, atol=0.01)


@pytest.mark.parametrize("file", ["m.onnx", "m.pt2"])
def test_a_softplus_is_that_of_float32(tmp_path: Path, file: str) -> None:
    """Its exponential is infinite in float16 from 11 on, and nothing beside 1 below -8, where steps of tokens are."""
    torch = pytest.importorskip("torch")

    class Steps(torch.nn.Module):
        def forward(self, x: Any, weight: Any) -> Any:
            return torch.nn.functional.softplus(x @ weight)

    x = np.linspace(-12, 22, 128).astype(np.float16).astype(np.float32).reshape(8, 16)
    inputs = torch.from_numpy(x), torch.eye(16)
    saved(Steps(), inputs, tmp_path / file)
    bundle = packager.build(tmp_path / file, tmp_path / "m.so", targets=["llvm"], precision="fp16")
    with packager.load(bundle) as loaded:
        feeds = {spec.name: tensor.numpy() for spec, tensor in zip(loaded.inputs, inputs, strict=True)}
        (got,) = loaded.run(feeds).values()
    np.testing.assert_allclose(got, np.log1p(np.exp(x.astype(np.float64))), rtol=1e-3, atol=1e-6)

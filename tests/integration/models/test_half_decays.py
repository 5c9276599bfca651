"""Decays in half precision: exponentials of differences of running sums, as state space models have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import graph, normal, save

import packager

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

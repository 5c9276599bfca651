"""Normalizations that exporters write out, in half precision: computed in float32, so that large squares are finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import graph, normal, save

import packager

# The product makes its result half precision; elements of a thousand have squares that float16 has not.
RMS = """
    g (float[n,64] x) => (float[n,48] y) {
        two = Constant <value = float {2.0}> ()
        epsilon = Constant <value = float {1e-5}> ()
        data = MatMul (x, w)
        squares = Pow (data, two)
        mean = ReduceMean <axes = [-1]> (squares)
        shifted = Add (mean, epsilon)
        root = Sqrt (shifted)
        inverse = Reciprocal (root)
        normal = Mul (data, inverse)
        y = Mul (scale, normal)
    }
"""
LAYER = """
    g (float[n,64] x) => (float[n,48] y) {
        two = Constant <value = float {2.0}> ()
        epsilon = Constant <value = float {1e-5}> ()
        data = MatMul (x, w)
        mean = ReduceMean <axes = [-1]> (data)
        centered = Sub (data, mean)
        squares = Pow (centered, two)
        variance = ReduceMean <axes = [-1]> (squares)
        shifted = Add (variance, epsilon)
        root = Sqrt (shifted)
        normal = Div (centered, root)
        scaled = Mul (normal, scale)
        y = Add (scaled, shift)
    }
"""


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("target", ["llvm", "ccompiler"])
@pytest.mark.parametrize("text", [RMS, LAYER], ids=["rms", "layer"])
def test_large_elements_are_normalized(tmp_path: Path, text: str, target: str) -> None:
    weights = {"w": normal(64, 48), "scale": normal(48)} | ({"shift": normal(48)} if text is LAYER else {})
    targets = ["llvm"] if target == "llvm" else ["llvm", "ccompiler"]
    model = save(graph(text, weights), tmp_path / "norm.onnx")
    bundle = packager.build(model, tmp_path / "norm.so", targets=targets, dims={"n": (1, 8)}, precision="fp16")
    x = 100 * np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    data = x.astype(np.float64) @ weights["w"]
    if text is LAYER:
        data -= data.mean(-1, keepdims=True)
    wanted = data / np.sqrt((data**2).mean(-1, keepdims=True) + 1e-5) * weights["scale"] + weights.get("shift", 0)
    got = packager.load(bundle).run({"x": x})["y"]
    assert np.abs(data).max() > 256
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-3 * np.abs(wanted).max())

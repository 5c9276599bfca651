"""Front ends of speech models in half precision: a logarithm of mel filters of a power spectrum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import graph, normal, save

import packager

FRAME, BINS, MELS = 64, 32, 16
POWERS = {
    "squares": "squares = Mul (part, part) powers = ReduceSum <keepdims = 0> (squares, last)",
    "pow": (
        "two = Constant <value = float {2.0}> () squares = Pow (part, two)"
        " powers = ReduceSum <keepdims = 0> (squares, last)"
    ),
    "magnitudes": ("squares = Mul (part, part) sums = ReduceSum <keepdims = 0> (squares, last) powers = Sqrt (sums)"),
}
TEXT = """
    g (float[n,64] x) => (float[n,16] y) {{
        last = Constant <value = int64[1] {{2}}> ()
        shape = Constant <value = int64[3] {{0, 32, 2}}> ()
        least = Constant <value = float {{1e-10}}> ()
        parts = MatMul (x, dft)
        part = Reshape (parts, shape)
        {powers}
        mel = MatMul (powers, filters)
        bounded = Max (mel, least)
        y = Log (bounded)
    }}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loudness", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("powers", list(POWERS))
def test_quiet_and_loud_spectra_have_logarithms(tmp_path: Path, powers: str, loudness: float) -> None:
    """Of powers of 1e-8 to 1e6, of which float16 has neither."""
    weights = {"dft": normal(FRAME, 2 * BINS), "filters": np.abs(normal(BINS, MELS))}
    model = save(graph(TEXT.format(powers=POWERS[powers]), weights), tmp_path / "mel.onnx")
    bundle = packager.build(model, tmp_path / "mel.so", targets=["llvm"], dims={"n": (1, 8)}, precision="fp16")
    x = loudness * np.random.default_rng(0).standard_normal((5, FRAME)).astype(np.float32)
    x = x.astype(np.float16).astype(np.float32)
    sums = ((x.astype(np.float64) @ weights["dft"]).reshape(5, BINS, 2) ** 2).sum(-1)
    wanted = np.log(np.maximum((np.sqrt(sums) if powers == "magnitudes" else sums) @ weights["filters"], 1e-10))
    np.testing.assert_allclose(packager.load(bundle).run({"x": x})["y"], wanted, rtol=0, atol=0.01)

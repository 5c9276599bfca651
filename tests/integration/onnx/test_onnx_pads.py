"""Pad by extents that follow from symbolic dims, and Col2Im of a symbolic batch, against onnx's reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import packager

pytestmark = pytest.mark.slow

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'
# To a multiple of four behind, and one in front.
PAD = """
padded (float[n, w] x) => (float[n, p] y)
<int64[1] first = {1}, int64[1] four = {4}, int64[1] zero = {0}, float v = {2.5}>
{
  shape = Shape <start = 1> (x)
  rest = Mod (shape, four)
  lacks = Sub (four, rest)
  pads = Concat <axis = 0> (zero, first, zero, lacks)
  y = Pad <mode = "MODE"> (x, padsVALUE)
}
"""
COLUMNS = """
columns (float[n, 12, 20] x) => (float[n, 3, 6, 5] y)
<int64[2] image = {6, 5}, int64[2] block = {2, 2}> { y = Col2Im (x, image, block) }
"""


def compare(text: str, sizes: list[tuple[int, ...]], dims: dict[str, tuple[int, int]], folder: Path) -> None:
    model = parse_model(HEADER + text)
    onnx.save(model, folder / "model.onnx")
    with packager.load(packager.build(folder / "model.onnx", folder / "model.so", dims=dims)) as bundle:
        for size in sizes:
            x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
            (have,) = bundle.run({"x": x}).values()
            (want,) = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_allclose(have, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "value"), [("constant", ""), ("constant", ", v"), ("edge", ""), ("reflect", ""), ("wrap", "")]
)
def test_pads_that_follow_from_a_dim(mode: str, value: str, tmp_path: Path) -> None:
    text = PAD.replace("MODE", mode).replace("VALUE", value)
    compare(text, [(1, 5), (3, 6), (2, 16), (4, 9)], {"n": (1, 4), "w": (5, 16)}, tmp_path)


def test_columns_of_a_symbolic_batch(tmp_path: Path) -> None:
    compare(COLUMNS, [(1, 12, 20), (3, 12, 20)], {"n": (1, 4)}, tmp_path)

"""Pad, Reshape and PRelu by extents that follow from symbolic dims, and Col2Im, against onnx's reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import packager
from packager.errors import RunError
from tests.one_cpu import targets_here

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
# The division of (past + new) * batch * 64 by (past + new) * 16 has to be seen.
HEADS = """
heads (float[b, 4, p, 16] past, float[b, 4, n, 16] new) => (float[h, 16, t] y)
<int64[1] all = {-1}, int64[1] size = {16}>
{
  keys = Concat <axis = 2> (past, new)
  rows = Shape <start = 2, end = 3> (keys)
  target = Concat <axis = 0> (all, rows, size)
  merged = Reshape (keys, target)
  y = Transpose <perm = [0, 2, 1]> (merged)
}
"""
SLOPE = """
slope (float[n, 3, w] x) => (float[n, 3, w] y, float[n, 3, w] z)
<float[1] one = {0.25}, float[3, 1] each = {0.5, -1.0, 2.0}> { y = PRelu (x, one) z = PRelu (x, each) }
"""
# TorchScript writes the number of steps that it saw: the heads fit for nine rows only.
TRACED = """
traced (float[rows, b, 16] x) => (float[9, b, 16] y)
<int64[1] nine = {9}, int64[1] heads = {4}, int64[1] size = {4}, int64[1] whole = {16}>
{
  batch = Shape <start = 1, end = 2> (x)
  many = Mul (batch, heads)
  split = Concat <axis = 0> (nine, many, size)
  apart = Reshape (x, split)
  rows_last = Transpose <perm = [1, 0, 2]> (apart)
  four = Concat <axis = 0> (batch, heads, nine, size)
  q = Reshape (rows_last, four)
  k = Transpose <perm = [0, 1, 3, 2]> (q)
  scores = MatMul (q, k)
  shares = Softmax <axis = -1> (scores)
  mixed = MatMul (shares, q)
  back = Transpose <perm = [2, 0, 1, 3]> (mixed)
  joined = Concat <axis = 0> (nine, batch, whole)
  y = Reshape (back, joined)
}
"""
COLUMNS = """
columns (float[n, 12, 20] x) => (float[n, 3, 6, 5] y)
<int64[2] image = {6, 5}, int64[2] block = {2, 2}> { y = Col2Im (x, image, block) }
"""


def compare(text: str, sizes: list[dict[str, tuple[int, ...]]], dims: dict[str, tuple[int, int]], folder: Path) -> Path:
    """Build, and compare at the sizes of the inputs; return the bundle."""
    model = parse_model(HEADER + text)
    onnx.save(model, folder / "model.onnx")
    library = packager.build(folder / "model.onnx", folder / "model.so", dims=dims, targets=targets_here())
    with packager.load(library) as bundle:
        for shapes in sizes:
            random = np.random.default_rng(0)
            feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            for have, want in zip(bundle.run(feeds).values(), ReferenceEvaluator(model).run(None, feeds), strict=True):
                np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    return library


@pytest.mark.parametrize(
    ("mode", "value"), [("constant", ""), ("constant", ", v"), ("edge", ""), ("reflect", ""), ("wrap", "")]
)
def test_pads_that_follow_from_a_dim(mode: str, value: str, tmp_path: Path) -> None:
    text = PAD.replace("MODE", mode).replace("VALUE", value)
    compare(text, [{"x": size} for size in ((1, 5), (3, 6), (2, 16), (4, 9))], {"n": (1, 4), "w": (5, 16)}, tmp_path)


def test_columns_of_a_symbolic_batch(tmp_path: Path) -> None:
    compare(COLUMNS, [{"x": (1, 12, 20)}, {"x": (3, 12, 20)}], {"n": (1, 4)}, tmp_path)


def test_heads_and_batch_merge_into_the_rest(tmp_path: Path) -> None:
    sizes = [{"past": (b, 4, p, 16), "new": (b, 4, n, 16)} for b, p, n in ((1, 1, 1), (2, 5, 3), (4, 9, 8))]
    compare(HEADS, sizes, {"b": (1, 4), "p": (1, 9), "n": (1, 8)}, tmp_path)


def test_slopes_of_a_symbolic_axis(tmp_path: Path) -> None:
    compare(SLOPE, [{"x": (1, 3, 1)}, {"x": (2, 3, 9)}], {"n": (1, 4), "w": (1, 9)}, tmp_path)


def test_a_size_that_was_traced_is_a_condition(tmp_path: Path) -> None:
    library = compare(TRACED, [{"x": (9, 1, 16)}, {"x": (9, 3, 16)}], {"rows": (1, 16), "b": (1, 4)}, tmp_path)
    with packager.load(library) as bundle, pytest.raises(RunError, match="do not fit"):
        bundle.run({"x": np.zeros((8, 2, 16), np.float32)})

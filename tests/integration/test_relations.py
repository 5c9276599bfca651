"""Shape arithmetic with symbolic dims in ONNX graphs, as torch.onnx.export writes it, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import packager

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
arithmetic (float[batch, rows, 6] x) => (float[batch, 3, rows, 2] heads, float[n, 6] flat, int64[m] places,
                                         float[batch, k, 6] middle, int64[2] sizes)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] six = {6},
 int64 first = {0}, int64 step = {1}, int64 half = {2}>
{
  batch1 = Shape <start = 0, end = 1> (x)
  rows1 = Shape <start = 1, end = 2> (x)
  split = Concat <axis = 0> (batch1, rows1, three, two)
  apart = Reshape (x, split)
  heads = Transpose <perm = [0, 2, 1, 3]> (apart)
  product = Mul (batch1, rows1)
  whole = Concat <axis = 0> (product, six)
  flat = Reshape (x, whole)
  rows0 = Squeeze (rows1)
  twice = Mul (rows0, half)
  longer = Add (twice, step)
  places = Range (first, longer, step)
  last = Sub (rows1, one)
  middle = Slice (x, zero, last, one)
  sizes = Concat <axis = 0> (product, rows1)
}
"""


def test_extents_of_two_dims(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(GRAPH)
    onnx.save(model, tmp_path / "m.onnx")
    dims = {"batch": (1, 4), "rows": (2, 9)}
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    with packager.load(packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims=dims, targets=["llvm"])) as bundle:
        for shape in ((2, 5, 6), (4, 9, 6), (1, 2, 6)):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            for result, wanted in zip(bundle.run({"x": x}).values(), theirs.run(None, {"x": x}), strict=True):
                assert result.dtype == wanted.dtype
                np.testing.assert_array_equal(result, wanted)

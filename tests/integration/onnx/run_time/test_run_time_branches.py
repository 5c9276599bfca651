"""Branches that a run chooses, against onnxruntime: what they consist of, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from packager.frontends.onnx.graph.nodes import BRANCH
from packager.frontends.onnx.graph.simplify import simplify
from tests.integration.onnx.run_time.test_run_time_loops import compare

# A branch whose own If is decided by shapes, as in voice activity detectors of two sampling rates.
NESTED = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,8] x, int64 rate) => (float[2,8] y) {
  fast = Equal(rate, known)
  y = If(fast) <
    then_branch = one () => (float[2,8] a) {
      s = Shape(x) r = Size(s) flat = Equal(r, two)
      a = If(flat) <
        then_branch = inner () => (float[2,8] b) {
          b1 = MatMul(x, w) b2 = Tanh(b1) b3 = MatMul(b2, w) b4 = Tanh(b3) b5 = MatMul(b4, w) b = Sigmoid(b5)
        },
        else_branch = other () => (float[2,8] c) { c = Neg(x) }
      >
    },
    else_branch = two () => (float[2,8] d) {
      d1 = MatMul(x, w) d2 = Relu(d1) d3 = MatMul(d2, w) d4 = Relu(d3) d5 = MatMul(d4, w) d = Softmax(d5)
    }
  >
}
"""
WRONG = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,8] x, int64 rate) => (float[2,8] y) {
  fast = Equal(rate, known)
  y = If(fast) <
    then_branch = one () => (float[2,8] a) {
      a1 = MatMul(x, w) a2 = Tanh(a1) a3 = MatMul(a2, w) a4 = Relu(a3) a = Neg(a4)
    },
    else_branch = two () => (float[2,8] d) { d1 = MatMul(x, v) d2 = Tanh(d1) d3 = Relu(d2) d4 = Neg(d3) d = Abs(d4) }
  >
}
"""


def model(text: str) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((8, 8)), "v": rng.standard_normal((4, 8))}
    constants = {name: array.astype(np.float32) for name, array in arrays.items()}
    constants |= {"known": np.int64(16000), "two": np.int64(2)}
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    return parsed


def test_what_is_inside_of_a_branch_is_computed_where_it_is_taken() -> None:
    """Also what comes from an If in it whose condition is known, which takes its place."""
    parsed = model(NESTED)
    simplify(parsed, {}, {})
    products = [node for node in parsed.graph.node if node.op_type == "MatMul"]
    assert len(products) == 6
    assert all(any(entry.key == BRANCH for entry in node.metadata_props) for node in products)


@pytest.mark.slow
def test_branches_in_branches(tmp_path: Path) -> None:
    onnx.save(model(NESTED), tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    compare(tmp_path / "m.onnx", [{"x": x, "rate": np.array(rate)} for rate in (16000, 8000, 16000)])


@pytest.mark.slow
def test_a_branch_that_these_sizes_cannot_take(tmp_path: Path) -> None:
    onnx.save(model(WRONG), tmp_path / "m.onnx")
    with pytest.raises(packager.PackagerError) as caught:
        packager.build(tmp_path / "m.onnx", tmp_path / "m.so")
    assert "of operator MatMul cannot be imported" in caught.value.message
    assert "in a branch of an If that the run chooses" in str(caught.value.hint)
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", freeze={"rate": np.int64(16000)})
    with packager.load(path) as bundle:
        assert [tensor.name for tensor in bundle.inputs] == ["x"]

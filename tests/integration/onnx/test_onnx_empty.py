"""Values without elements: inputs, outputs, and what follows of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import packager
from packager.errors import ModelError, RunError
from tests.one_cpu import targets_here
from tests.onnx_nodes import model_of

node = helper.make_node
FLOAT = TensorProto.FLOAT


@pytest.mark.slow
def test_nothing_is_computed_of_nothing(tmp_path: Path) -> None:
    constants = {
        "last": np.array([1]),
        "none": np.array([4]),
        "end": np.array([9]),
        "nowhere": np.zeros((0, 1), np.int64),
        "front": np.array([1, 0, 0, 0]),
    }
    nodes = [
        node("ReduceMax", ["empty", "last"], ["largest"], keepdims=0),
        node("Transpose", ["empty"], ["turned"]),
        node("MatMul", ["empty", "turned"], ["product"]),
        node("Add", ["x", "largest"], ["sum"]),
        node("Slice", ["x", "none", "end"], ["rest"]),
        node("Neg", ["rest"], ["negated"]),
        node("Concat", ["x", "negated"], ["joined"], axis=0),
        node("ScatterND", ["x", "nowhere", "negated"], ["same"]),
        node("Relu", ["same"], ["kept"]),
        node("Pad", ["rest2", "front"], ["padded"], mode="constant"),
        node("Unsqueeze", ["rest", "last"], ["rest2"]),
    ]
    nodes[-2], nodes[-1] = nodes[-1], nodes[-2]
    names = ["largest", "product", "sum", "rest", "negated", "joined", "kept", "padded", "turned"]
    model = model_of(
        nodes, {"x": (np.float32, (3,)), "empty": (np.float32, (3, "k"))}, dict.fromkeys(names, FLOAT), constants
    )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    path = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims={"k": 0}, golden=0, targets=targets_here())
    assert packager.verify(path, run=True).ok
    x = np.array([1, -2, 3], np.float32)
    with packager.load(path) as bundle:
        assert next(spec.shape for spec in bundle.manifest.inputs if spec.name == "empty") == (3, 0)
        made = bundle.run({"x": x, "empty": np.empty((3, 0), np.float32)})
        with pytest.raises(RunError, match="axis 1 is 1, expected 0"):
            bundle.run({"x": x, "empty": np.empty((3, 1), np.float32)})
    np.testing.assert_array_equal(made["largest"], np.full(3, -np.inf))
    np.testing.assert_array_equal(made["product"], np.zeros((3, 3)))
    np.testing.assert_array_equal(made["sum"], np.full(3, -np.inf))
    assert made["rest"].shape == made["negated"].shape == (0,)
    assert made["turned"].shape == (0, 3)
    np.testing.assert_array_equal(made["joined"], x)
    np.testing.assert_array_equal(made["kept"], np.maximum(x, 0))
    np.testing.assert_array_equal(made["padded"], np.zeros((1, 1)))


def test_where_other_extents_are_open_it_is_refused(tmp_path: Path) -> None:
    model = model_of([node("Softmax", ["x"], ["y"])], {"x": (np.float32, ("n", "k"))}, {"y": FLOAT})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="input 'x' has an extent of 0 beside symbolic ones"):
        packager.build(tmp_path / "m.onnx", tmp_path / "m.so", dims={"n": (1, 4), "k": 0}, targets=targets_here())

"""Ranges whose limit is a dim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow

X = np.zeros((7, 3), np.float32)


def test_a_range_of_floats_over_a_dim(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Cast", ["n"], ["limit"], to=FLOAT),
        helper.make_node("Range", ["start", "limit", "step"], ["range"]),
        helper.make_node("Add", ["range", "half"], ["y"]),
    ]
    numbers = {"start": 0.0, "step": 1.0, "half": 0.5}
    constants = {name: np.float32(value) for name, value in numbers.items()} | {"zero": np.int64(0)}
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    model = model_of(nodes, {"x": (np.float32, ("n", 3))}, {"y": FLOAT}, arrays, opset=17)
    check_with_onnxruntime(model, {"x": X}, tmp_path, dims={"n": (1, 8)})

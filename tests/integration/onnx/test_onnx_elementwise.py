"""Operators on elements against onnxruntime: how many operands, and which types, they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import packager
from tests.onnx_nodes import check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_maxima_of_several_tensors(dtype: str, tmp_path: Path) -> None:
    """Of one, two and three tensors that broadcast, with a symbolic dim and a constant; as leaky ReLU and ReLU6 too."""
    shapes = {"x": ("n", 3, 1, 5), "y": (4, 1), "z": (1, 3, 4, 5)}
    constants = {"six": np.array(6, dtype), "two": np.array(2, dtype)}
    nodes = [helper.make_node("Mul", ["x", "two"], ["double"])]
    for name in ("Max", "Min"):
        for number, operands in enumerate((["x"], ["x", "y"], ["y", "x", "z"], ["x", "six"], ["double", "x"])):
            nodes.append(helper.make_node(name, operands, [f"{name}{number}"]))
    rng = np.random.default_rng(8)
    feeds = {
        name: rng.integers(0 if dtype == "uint8" else -9, 9, [2 if extent == "n" else extent for extent in shape])
        for name, shape in shapes.items()
    }
    inputs = {name: (np.dtype(dtype).type, shape) for name, shape in shapes.items()}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = {node.output[0]: kind for node in nodes[1:]}
    model = model_of(nodes, inputs, outputs, constants)
    check_with_onnxruntime(
        model, {name: feed.astype(dtype) for name, feed in feeds.items()}, tmp_path, dims={"n": (1, 3)}
    )


def test_a_maximum_of_two_is_in_the_loop_of_what_is_before(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "slope"], ["part"]), helper.make_node("Max", ["x", "part"], ["y"])]
    constants = {"slope": np.array(0.1, np.float32)}
    model = model_of(nodes, {"x": (np.float32, (3, 50))}, {"y": 1}, constants)
    x = np.random.default_rng(9).standard_normal((3, 50)).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    check_with_onnxruntime(model, {"x": x}, tmp_path)
    found = packager.inspect(next(tmp_path.glob("*.so"))).manifest
    assert len([*found.primitives()]) == 1

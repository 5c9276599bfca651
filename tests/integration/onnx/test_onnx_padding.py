"""Padding by extents that follow from dims, written as exporters of torch write it, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of

pytestmark = pytest.mark.slow


def to_a_multiple(mode: str) -> onnx.ModelProto:
    """Pad the last axis to the next multiple of 8, and one row before, as ``torch.nn.functional.pad`` is exported."""
    numbers = {"eight": [8], "pair": [-1, 2], "last": [-1], "least": [-(2**63) + 1], "first": [0], "one": [1]}
    numbers |= {"flat": [-1], "seven": [7], "zeros": [0, 0], "at": [2]}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "at"], ["length"]),
        helper.make_node("Add", ["length", "seven"], ["most"]),
        helper.make_node("Div", ["most", "eight"], ["groups"]),
        helper.make_node("Mul", ["groups", "eight"], ["whole"]),
        helper.make_node("Sub", ["whole", "length"], ["missing"]),
        helper.make_node("Concat", ["first", "missing", "one", "first", "zeros"], ["pads"], axis=0),
        helper.make_node("Reshape", ["pads", "pair"], ["pairs"]),
        helper.make_node("Slice", ["pairs", "last", "least", "first", "last"], ["turned"]),
        helper.make_node("Transpose", ["turned"], ["sides"], perm=[1, 0]),
        helper.make_node("Reshape", ["sides", "flat"], ["wanted"]),
        helper.make_node("Pad", ["x", "wanted"], ["y"], mode=mode),
    ]
    constants = {name: np.asarray(value, np.int64) for name, value in numbers.items()}
    return model_of(nodes, {"x": (np.float32, ("n", "rows", "length"))}, {"y": FLOAT}, constants, opset=19)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_that_are_computed(mode: str, tmp_path: Path) -> None:
    model = to_a_multiple(mode)
    rng = np.random.default_rng(2)
    for length in (9, 16, 13):
        x = rng.standard_normal((2, 3, length)).astype(np.float32)
        check_with_onnxruntime(model, {"x": x}, tmp_path, {"n": (1, 2), "rows": (2, 4), "length": (8, 20)})

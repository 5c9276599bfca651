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


def padded_as_by_tensorflow() -> onnx.ModelProto:
    """Convolve images that are padded on one side, by nothing, in a mode, by ``auto_pad``, and crop the last one."""
    pads = {"none": [0] * 8, "end": [0, 0, 0, 0, 0, 0, 1, 2], "around": [0, 0, 1, 2, 0, 0, 3, 1]}
    pads |= {"channels": [0, 1, 0, 0, 0, 2, 0, 0], "less": [0, 0, -1, 0, 0, 0, 0, -2]}
    nodes = [
        helper.make_node("Pad", ["x", "end"], ["p0"]),
        helper.make_node("Conv", ["p0", "w3"], ["a"], strides=[2, 2]),
        helper.make_node("Pad", ["a", "none"], ["p1"]),
        helper.make_node("Conv", ["p1", "w1"], ["b"], pads=[1, 0, 0, 2]),
        helper.make_node("Conv", ["b", "w5"], ["c"], auto_pad="SAME_UPPER", strides=[2, 1], group=8),
        helper.make_node("Conv", ["c", "w5"], ["d"], auto_pad="SAME_LOWER", group=8),
        helper.make_node("Pad", ["d", "around"], ["e"], mode="reflect"),
        helper.make_node("Pad", ["e", "around"], ["f"], mode="edge"),
        helper.make_node("Pad", ["f", "around"], ["g"], mode="wrap"),
        helper.make_node("Pad", ["g", "channels"], ["h"]),  # of channels: no convolution takes them in
        helper.make_node("Conv", ["h", "w11"], ["i"], pads=[1, 1, 1, 1]),
        helper.make_node("Pad", ["i", "around", "one"], ["j"]),  # not zeros
        helper.make_node("Conv", ["j", "w1"], ["k"]),
        helper.make_node("Pad", ["k", "less"], ["y"]),
    ]
    rng = np.random.default_rng(3)
    shapes = {"w3": (8, 3, 3, 3), "w1": (8, 8, 1, 1), "w5": (8, 1, 5, 4), "w11": (8, 11, 3, 3)}
    constants = {name: np.asarray(value, np.int64) for name, value in pads.items()}
    constants |= {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    constants["one"] = np.float32(1)
    return model_of(nodes, {"x": (np.float32, ("n", 3, "height", 17))}, {"y": FLOAT}, constants, opset=19)


def test_pads_of_convolutions(tmp_path: Path) -> None:
    model = padded_as_by_tensorflow()
    x = np.random.default_rng(4).standard_normal((2, 3, 22, 17)).astype(np.float32)
    check_with_onnxruntime(model, {"x": x}, tmp_path, {"n": (2, 2), "height": (22, 22)})
    check_with_onnxruntime(model, {"x": x}, tmp_path, {"n": (1, 2), "height": (20, 30)})


def padded_before_each_layer(layers: int) -> onnx.ModelProto:
    """Convolve with stride 2 as EnCodec does: each layer pads by what the extent of the last one leaves."""
    numbers = {"at": [2], "two": [2], "none": [0, 0], "start": [0, 0, 1]}
    nodes = []
    for index in range(layers):
        x, n = f"x{index}" if index else "x", str(index)
        nodes += [
            helper.make_node("Shape", [x], [f"shape{n}"]),
            helper.make_node("Gather", [f"shape{n}", "at"], [f"length{n}"]),
            helper.make_node("Cast", [f"length{n}"], [f"real{n}"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"real{n}", "half"], [f"pairs{n}"]),
            helper.make_node("Ceil", [f"pairs{n}"], [f"whole{n}"]),
            helper.make_node("Cast", [f"whole{n}"], [f"even{n}"], to=onnx.TensorProto.INT64),
            helper.make_node("Add", [f"even{n}", f"even{n}"], [f"wanted{n}"]),
            helper.make_node("Sub", [f"wanted{n}", f"length{n}"], [f"rest{n}"]),
            helper.make_node("Add", [f"rest{n}", "two"], [f"missing{n}"]),
            helper.make_node("Concat", ["start", "none", f"missing{n}"], [f"pads{n}"], axis=0),
            helper.make_node("Pad", [x, f"pads{n}"], [f"padded{n}"]),
            helper.make_node("Conv", [f"padded{n}", "w"], [f"x{index + 1}"], strides=[2]),
        ]
    constants = {name: np.asarray(value, np.int64) for name, value in numbers.items()}
    constants |= {"half": np.float32([0.5]), "w": np.ones((1, 1, 2), np.float32)}
    return model_of(nodes, {"x": (np.float32, (1, 1, 37))}, {f"x{layers}": FLOAT}, constants, opset=19)


def test_the_padding_of_each_of_many_layers_follows_from_the_last(tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 37)).astype(np.float32)
    check_with_onnxruntime(padded_before_each_layer(20), {"x": x}, tmp_path)

"""Parameters that are inputs of a model follow from the shapes that it states: onnx's own cases, as their files are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import packager
from tests.one_cpu import targets_here
from tests.onnx_nodes import FLOAT, check_with_onnxruntime, model_of

X = np.arange(3 * 4 * 4, dtype=np.float32).reshape(3, 4, 4)

pytestmark = pytest.mark.slow


def stated(nodes: list[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, Any],
           constants: Mapping[str, Any] | None = None) -> onnx.ModelProto:  # fmt: skip
    """A model whose outputs have static shapes."""
    model = model_of(nodes, inputs, dict.fromkeys(outputs, FLOAT), constants)
    for value in model.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, outputs[value.name]))
    return model


def test_positions_and_axes_that_a_run_gives(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axes"], ["part"]),
        helper.make_node("CumSum", ["x", "axis"], ["sums"]),
        helper.make_node("ReduceMax", ["x", "one"], ["most"], keepdims=0),
        helper.make_node("Pad", ["x", "pads"], ["turned"], mode="reflect"),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Split", ["x", "sizes"], ["left", "right"], axis=2),
    ]
    wide = ("start", "end", "axes", "one", "pads", "shape", "sizes")
    lengths = {"pads": 6, "shape": 2, "sizes": 2}
    inputs = {"x": (np.float32, X.shape), "axis": (np.int64, ())}
    inputs |= {name: (np.int64, (lengths.get(name, 1),)) for name in wide}
    outputs = {"part": [3, 2, 4], "sums": [3, 4, 4], "most": [3, 4], "turned": [3, 6, 5], "flat": [12, 4]}
    model = stated(nodes, inputs, outputs | {"left": [3, 4, 1], "right": [3, 4, 3]})
    given = {"pads": [0, 1, 0, 0, 1, 1], "shape": [12, 4], "sizes": [1, 3], "axes": [1]}
    for start, axis, one in ((0, 0, 1), (1, 2, 2), (-2, -2, -1)):
        feeds = given | {"start": [start], "end": [start + 2 if start != -2 else 9], "axis": axis, "one": [one]}
        arrays = {name: np.asarray(value, np.int64) for name, value in feeds.items()}
        check_with_onnxruntime(model, {"x": X, **arrays}, tmp_path)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_that_a_run_gives(mode: str, tmp_path: Path) -> None:
    model = stated([helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)],
                   {"x": (np.float32, (1, 1, 8, 10)), "scales": (np.float32, (4,))}, {"y": [1, 1, 4, 17]})  # fmt: skip
    x = np.random.default_rng(1).standard_normal((1, 1, 8, 10)).astype(np.float32)
    for scales in ([1, 1, 0.6, 1.7], [1, 1, 0.5, 1.75]):
        check_with_onnxruntime(model, {"x": x, "scales": np.asarray(scales, np.float32)}, tmp_path)


def test_parts_that_no_shape_states_are_computed_by_the_run(tmp_path: Path) -> None:
    """Sizes of Split that are an input, for results without a stated shape: they have to add up."""
    node = helper.make_node("Split", ["x", "sizes"], ["left", "right"])
    model = model_of([node], {"x": (np.float32, (4,)), "sizes": (np.int64, (2,))}, {"left": FLOAT, "right": FLOAT})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=targets_here())
    x = np.arange(4, dtype=np.float32)
    with packager.load(tmp_path / "m.so") as bundle:
        for left in (1, 3):
            found = bundle.run({"x": x, "sizes": np.array([left, 4 - left])})
            np.testing.assert_array_equal(found["left"], x[:left])
            np.testing.assert_array_equal(found["right"], x[left:])
        with pytest.raises(packager.PackagerError, match="=="):
            bundle.run({"x": x, "sizes": np.array([1, 1])})


def test_an_exporter_that_states_a_stale_shape(tmp_path: Path) -> None:
    """A shape that is computed from the dims of an input counts, not the one that was traced."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = {"first": np.asarray([0], np.int64), "rest": np.asarray([-1], np.int64)}
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        nodes,
        "stale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        initializers,
        value_info=[helper.make_tensor_value_info("wanted", TensorProto.INT64, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    x = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    check_with_onnxruntime(model, {"x": x}, tmp_path, {"n": (1, 8)})

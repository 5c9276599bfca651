"""Loops whose steps are known become the nodes of their bodies; others are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_nodes import BOOL, FLOAT, INT64, check_with_onnxruntime, model_of, run_bundle

pytestmark = pytest.mark.slow


def _loop(condition: list[onnx.NodeProto], condition_name: str) -> onnx.ModelProto:
    """Return a model that doubles x at each step, adds a tensor from outside, and collects the results."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["twice"]),
            helper.make_node("Add", ["twice", "outer"], ["next"]),
            *condition,
        ],
        "body",
        [
            helper.make_tensor_value_info("step", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(condition_name, BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, None),
            helper.make_tensor_value_info("twice", FLOAT, None),
        ],
        [numpy_helper.from_array(np.array(2, np.int64), "limit")],
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["outer"]),
        helper.make_node("Loop", ["most", "start", "x"], ["y", "all"], body=body),
    ]
    constants = {"most": np.array(5, np.int64), "start": np.array(True)}
    return model_of(nodes, {"x": (np.float32, ("n", 3))}, {"y": FLOAT, "all": FLOAT}, constants)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("limited", [False, True])
def test_loop(limited: bool, tmp_path: Path) -> None:
    less = helper.make_node("Less", ["step", "limit"], ["again"])
    same = helper.make_node("Identity", ["going"], ["again"])
    model = _loop([less if limited else same], "again")
    made = run_bundle(model, {"x": X}, tmp_path, dims={"n": (1, 4)})
    assert made["all"].shape == (3 if limited else 5, 2, 3)
    check_with_onnxruntime(model, {"x": X}, tmp_path, dims={"n": (1, 4)})


def test_a_loop_that_data_end_is_not_unrolled(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["state"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["again"], to=TensorProto.BOOL),
    ]
    check_with_onnxruntime(_loop(nodes, "again"), {"x": X}, tmp_path, dims={"n": (1, 4)})


def test_scan_backwards_along_another_axis(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["new"]), helper.make_node("Mul", ["new", "row"], ["out"])],
        "body",
        [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("sum", "row")],
        [helper.make_tensor_value_info(name, FLOAT, [2]) for name in ("new", "out")],
    )
    scan = helper.make_node(
        "Scan",
        ["start", "x"],
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    inputs = {"start": (np.float32, (2,)), "x": (np.float32, (2, 3))}
    model = model_of([scan], inputs, {"last": FLOAT, "all": FLOAT})
    check_with_onnxruntime(model, {"start": np.ones(2, np.float32), "x": X}, tmp_path)

"""Operators of onnxruntime that follow each other: each expansion needs the types that the one before makes known."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from packager.frontends.onnx.graph.simplify import simplify


@pytest.mark.parametrize("length", [3, 60])
def test_a_chain_of_any_length_is_expanded(length: int) -> None:
    nodes = [
        helper.make_node("QuickGelu", [f"x{n}"], [f"x{n + 1}"], domain="com.microsoft", alpha=1.5)
        for n in range(length)
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(f"x{length}", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    onnx.checker.check_model(model)
    simplify(model, {}, {})
    assert not any(node.domain for node in model.graph.node)


def test_outputs_that_nothing_reads_are_omitted() -> None:
    """A mean and a deviation that have names, as exporters write them, are still left out."""
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "skip", "gamma"], ["y", "mean", "deviation", "sum"], domain="com.microsoft"
    )
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "skip", "y")]
    graph = helper.make_graph([node], "named", values[:2], values[2:])
    graph.initializer.append(helper.make_tensor("gamma", TensorProto.FLOAT, [4], [1.0] * 4))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    simplify(model, {}, {})
    assert not any(node.domain for node in model.graph.node)

"""Pads with zeros that become padding of convolutions, and those that do not."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.merge_pads import merge_pads
from packager.transforms.simplify.no_ops import drop_no_ops


@pytest.mark.parametrize(
    ("widths", "value", "symmetric", "padding"),
    [
        ([0, 0, 0, 0, 0, 1, 2, 3], 0.0, False, [1, 2, 1, 4]),
        ([0, 0, 0, 0, 2, 2, 1, 1], 0.0, True, None),
        ([0, 0, 0, 0, 2, 3, 2, 1], 0.0, True, [3, 2, 3, 2]),
        ([0, 0, 0, 1, 0, 1, 0, 1], 0.0, False, None),  # channels
        ([0, 0, 0, 0, 0, 1, 0, 1], 1.0, False, None),
    ],
)
def test_pads(widths: list[int], value: float, symmetric: bool, padding: list[int] | None) -> None:
    x = relax.Var("x", relax.TensorType((1, 4, 9, 8), "float32"))
    w = relax.Var("w", relax.TensorType((6, 4 + widths[3], 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            padded = builder.emit(relax.op.nn.pad(x, widths, "constant", value))
            result = builder.emit_output(relax.op.nn.conv2d(padded, w, padding=[1, 0, 0, 1]))
        builder.emit_func_output(result)
    merged = relax.transform.DeadCodeElimination()(merge_pads(builder.get(), symmetric))
    calls = {operator_of(binding.value): binding.value for binding in bindings_of(merged["main"])}
    assert ("nn.pad" in calls) == (padding is None)
    assert [*map(int, calls["nn.conv2d"].attrs.padding)] == (padding or [1, 0, 0, 1])
    assert merged["main"].ret_ty == builder.get()["main"].ret_ty


def test_a_pad_by_nothing_is_dropped() -> None:
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.nn.pad(x, [0, 0, 0, 0]))))
        builder.emit_func_output(result)
    kept = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(drop_no_ops(builder.get())))
    assert [operator_of(binding.value) for binding in bindings_of(kept["main"])] == ["nn.relu"]

"""Draws models at random whose shapes data decide, from nodes that give and take such shapes.

All values are matrices of small whole numbers in floats, so that comparisons are exact whatever the order of sums. Each
axis has a name: operands of a node have the same axes where it demands that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from packager.bundle.arrays import Array

CONSTANTS: dict[str, Array] = {
    "zero": np.array(0, np.float32),
    "low": np.array(-9, np.float32),
    "high": np.array(9, np.float32),
    "axis0": np.array([0]),
    "axis1": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "first": np.array(0),
    "one": np.array(1),
    "column": np.array([-1, 1]),
    "scalar": np.empty(0, np.int64),
}


@dataclass(frozen=True)
class Matrix:
    """A value: its name, and the names of its axes; ``1`` is an extent of one."""

    name: str
    axes: tuple[str, str]


class Growth:
    """A model that grows by one step at a time from an input ``x`` [n, 6]."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.values = [Matrix("x", ("n", "6"))]
        self.count = 0

    def model(self, steps: int) -> onnx.ModelProto:
        """Return the model after some steps; its outputs are the last values."""
        rules = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("step_")]
        while len(self.values) <= steps:
            made = self.rng.choice(rules)()
            if made is not None:
                self.values.append(made)
        outputs = [value for value in self.values[1:] if self.rng.random() < 0.4 or value is self.values[-1]]
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
            [helper.make_tensor_value_info(value.name, TensorProto.FLOAT, None) for value in outputs],
            [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def node(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the names of its outputs."""
        self.count += 1
        names = [f"v{self.count}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def any(self) -> Matrix:
        """Return a value, more often a late one."""
        return self.values[int(len(self.values) * np.sqrt(self.rng.random()))]

    def fresh(self) -> str:
        """Return the name of a new axis."""
        self.count += 1
        return f"a{self.count}"

    def clipped(self, name: str) -> str:
        return str(self.node("Clip", name, "low", "high"))

    def mask(self, value: Matrix, axis: int) -> str:
        """Return which slices along an axis have a positive sum."""
        sums = self.node("ReduceSum", value.name, f"axis{1 - axis}", keepdims=1)
        flat = self.node("Squeeze", sums, f"axis{1 - axis}")
        return str(self.node("Greater", flat, "zero"))

    def step_compress(self) -> Matrix:
        value, axis = self.any(), int(self.rng.integers(2))
        axes = [*value.axes]
        axes[axis] = self.fresh()
        return Matrix(self.node("Compress", value.name, self.mask(value, axis), axis=axis), (axes[0], axes[1]))

    def step_compress_again(self) -> Matrix:
        """By the mask of another value with the same rows."""
        value, other = self.any(), self.any()
        kept = self.mask(other if other.axes[0] == value.axes[0] else value, 0)
        return Matrix(self.node("Compress", value.name, kept, axis=0), (self.fresh(), value.axes[1]))

    def step_non_zero(self) -> Matrix:
        """Gather a row for each element that is not zero."""
        value = self.any()
        if self.rng.random() < 0.5:
            value = self.values[0]
        place = self.node("Gather", self.node("NonZero", value.name), "first", axis=0)
        return Matrix(self.node("Gather", value.name, place, axis=0), (self.fresh(), value.axes[1]))

    def step_concat(self) -> Matrix | None:
        first, second, axis = self.any(), self.any(), int(self.rng.integers(2))
        if first.axes[1 - axis] != second.axes[1 - axis]:
            return None
        axes = [*first.axes]
        axes[axis] = self.fresh()
        return Matrix(self.node("Concat", first.name, second.name, axis=axis), (axes[0], axes[1]))

    def step_product(self) -> Matrix:
        first, second = self.any(), self.any()
        if first.axes[1] != second.axes[1]:
            second = first
        product = self.node("MatMul", first.name, self.node("Transpose", second.name, perm=[1, 0]))
        return Matrix(self.clipped(product), (first.axes[0], second.axes[0]))

    def step_add(self) -> Matrix:
        first, second = self.any(), self.any()
        if first.axes != second.axes:
            second = first
        return Matrix(self.clipped(self.node("Add", first.name, second.name)), first.axes)

    def step_unary(self) -> Matrix:
        value = self.any()
        return Matrix(self.node(str(self.rng.choice(["Relu", "Neg", "Abs"])), value.name), value.axes)

    def step_transpose(self) -> Matrix:
        value = self.any()
        return Matrix(self.node("Transpose", value.name, perm=[1, 0]), (value.axes[1], value.axes[0]))

    def step_sum(self) -> Matrix:
        value, axis = self.any(), int(self.rng.integers(2))
        axes = [*value.axes]
        axes[axis] = "1"
        return Matrix(self.clipped(self.node("ReduceSum", value.name, f"axis{axis}")), (axes[0], axes[1]))

    def extent(self, value: Matrix, axis: int) -> str:
        number = str(self.node("Shape", value.name))
        return str(self.node("Slice", number, f"axis{axis}", ["axis1", "two"][axis], "axis0"))

    def step_top(self) -> Matrix:
        value, axis = self.any(), int(self.rng.integers(2))
        count = self.node("Min", self.extent(value, axis), "three")
        axes = [*value.axes]
        axes[axis] = self.fresh()
        return Matrix(self.node("TopK", value.name, count, outputs=2, axis=axis)[0], (axes[0], axes[1]))

    def step_half(self) -> Matrix | None:
        value, axis = self.any(), int(self.rng.integers(2))
        if value.axes[axis] == "1":
            return None  # 0 of a known number beside a dim is refused
        end = self.node("Div", self.extent(value, axis), "two")
        axes = [*value.axes]
        axes[axis] = self.fresh()
        half = self.node("Slice", value.name, "axis0", end, f"axis{axis}")
        return Matrix(half, (axes[0], axes[1]))

    def step_unique(self) -> Matrix:
        found = self.node("Unique", self.any().name, sorted=1)
        return Matrix(self.node("Reshape", found, "column"), (self.fresh(), "1"))

    def step_numbers(self) -> Matrix:
        value = self.any()
        length = self.node("Squeeze", self.extent(value, 0), "axis0")
        numbers = self.node("Cast", self.node("Range", "first", length, "one"), to=TensorProto.FLOAT)
        return Matrix(self.clipped(self.node("Unsqueeze", numbers, "axis1")), (value.axes[0], "1"))

    def step_column(self) -> Matrix:
        return Matrix(self.node("Reshape", self.any().name, "column"), (self.fresh(), "1"))

    def step_sorted_sums(self) -> Matrix:
        value = self.any()
        return Matrix(self.clipped(self.node("CumSum", value.name, "first")), value.axes)

    def step_branch(self) -> Matrix:
        """Take a matrix or one of more rows, by the sum of another."""
        value, other = self.any(), self.any()
        total = self.node("ReduceSum", other.name, keepdims=0)
        condition = self.node("Greater", total, "zero")
        branches = {}
        for name, nodes in (
            ("then", [helper.make_node("Concat", [value.name, value.name], ["t"], axis=0)]),
            ("else", [helper.make_node("Neg", [value.name], ["e"])]),
        ):
            result = helper.make_tensor_value_info(name[0], TensorProto.FLOAT, None)
            branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [result])
        return Matrix(self.node("If", condition, **branches), (self.fresh(), value.axes[1]))


def inputs(seed: int) -> list[dict[str, Array]]:
    """Return runs: sparse whole numbers, nothing but zeros, nothing below zero, and again."""
    rng = np.random.default_rng([seed, 1])
    some = [rng.integers(-2, 3, (rows, 6)) * rng.integers(0, 2, (rows, 6)) for rows in (3, 1, 4)]
    return [{"x": x.astype(np.float32)} for x in (some[0], some[0] * 0, abs(some[2]), some[1], some[2])]

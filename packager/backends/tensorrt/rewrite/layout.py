"""Removes transposes: moves each behind elementwise operators until it meets its inverse, or folds it into a constant.

What onnxruntime's transpose optimizer does, for graphs that are channels last but for their convolutions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from packager.backends.tensorrt.rewrite.graph import Graph

Axes = tuple[int, ...]
View = tuple[str, Axes]  # a value is another one with axes in this order; no axes: itself

# Operators that compute each element of the result from one of each operand, with broadcasting.
ELEMENTWISE = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg",
    "Not", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
))  # fmt: skip
REDUCTIONS = frozenset(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"))


def remove_transposes(graph: Graph) -> None:
    """Rewrite a graph, whose outputs keep their names."""
    _Mover(graph).run()


class _Mover:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.views: dict[str, View] = {}
        self.made: dict[View, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        made = {name for node in graph.nodes for name in node.output}
        self.inputs = {name for node in graph.nodes for name in node.input} - made

    def run(self) -> None:
        for node in self.graph.nodes:
            if node.op_type == "Transpose":
                self._transpose(node)
            elif (axes := self._common_axes(node)) is not None:
                self._move(node, axes)
            elif not self._reduce(node):
                self._keep(node)
        for name in self.graph.outputs:
            if name in self.views:
                base, axes = self.views[name]
                settings = {"perm": axes} if axes else {}
                self.nodes.append(helper.make_node("Transpose" if axes else "Identity", [base], [name], **settings))
        self.graph.nodes = self.nodes

    def _view(self, name: str) -> View:
        return self.views.get(name, (name, ()))

    def _transpose(self, node: onnx.NodeProto) -> None:
        (operand,) = node.input
        order = tuple(helper.get_node_attr_value(node, "perm"))
        if self.graph.is_constant(operand):
            self.views[node.output[0]] = (self.graph.formed(operand, ("transpose", order)), ())
            return
        base, axes = self._view(operand)
        combined = tuple(axes[axis] for axis in order) if axes else order
        self.views[node.output[0]] = (base, () if combined == tuple(range(len(order))) else combined)

    def _common_axes(self, node: onnx.NodeProto) -> Axes | None:
        """Return the order of axes that most operands have, but for constants and inputs; None if there is none."""
        if node.op_type not in ELEMENTWISE and node.op_type != "Concat":
            return None
        computed = [name for name in node.input if name and not self._is_constant(name)]
        constants = [name for name in node.input if name and self._is_constant(name)]
        orders = Counter(self._view(name)[1] for name in computed)
        common = max(orders, key=lambda axes: (bool(axes), orders[axes], axes), default=())
        others = sum(self._view(name)[1] != common and name not in self.inputs for name in computed)
        if not common or others >= orders[common] or (constants and node.op_type == "Concat"):
            return None
        shapes = self.graph.shapes
        are_whole = all(name in shapes and len(shapes[name]) == len(common) for name in computed)
        are_less = all(len(shapes[self._view(name)[0]]) <= len(common) for name in constants)
        return common if are_whole and are_less else None

    def _is_constant(self, name: str) -> bool:
        return self.graph.is_constant(self._view(name)[0])

    def _move(self, node: onnx.NodeProto, axes: Axes) -> None:
        """Compute on what operands are views of."""
        inverse = tuple(axes.index(axis) for axis in range(len(axes)))
        operands = [self._operand(name, axes, inverse) for name in node.input]
        (name,) = node.output
        shape = self.graph.shapes.get(name)
        moved = None if shape is None else [shape[axis] for axis in inverse]
        made = self.graph.recomputed(name, self.graph.types[name], moved)
        self.nodes.append(_changed(node, operands, made))
        if node.op_type == "Concat":
            place = helper.get_node_attr_value(node, "axis") % len(axes)
            _set(self.nodes[-1], "axis", axes[place])
        self.views[name] = (made, axes)

    def _reduce(self, node: onnx.NodeProto) -> bool:
        """Reduce other axes of what the operand is a view of, if those that are left stay in order."""
        if node.op_type not in REDUCTIONS or not self._view(node.input[0])[1]:
            return False
        base, axes = self._view(node.input[0])
        given = {attribute.name: attribute for attribute in node.attribute}
        if len(node.input) > 1 and self.graph.is_constant(node.input[1]):
            reduced = [int(axis) for axis in self.graph.value(node.input[1])]
        elif "axes" in given:
            reduced = list(given["axes"].ints)
        else:
            return False
        reduced = [axis % len(axes) for axis in reduced]
        left = [axis for place, axis in enumerate(axes) if place not in reduced]
        keeps = "keepdims" not in given or given["keepdims"].i == 1
        if not keeps and left != sorted(left):
            return False
        (name,) = node.output
        changed = _changed(node, [base, *node.input[1:]])
        moved = sorted(axes[axis] for axis in reduced)
        if "axes" in given:
            given = {attribute.name: attribute for attribute in changed.attribute}
            given["axes"].ints[:] = moved
        else:
            changed.input[1] = self.graph.array(np.array(moved, np.int64))
        shape = self.graph.shapes.get(base)
        if keeps:
            extents = None if shape is None else [1 if axis in moved else extent for axis, extent in enumerate(shape)]
            changed.output[:] = [self.graph.recomputed(name, self.graph.types[name], extents)]
            self.views[name] = (changed.output[0], axes)
        self.nodes.append(changed)
        return True

    def _operand(self, name: str, axes: Axes, inverse: Axes) -> str:
        """Return what an operand is a view of; nothing for one that is left out."""
        if not name:
            return name
        if self._is_constant(name):
            return self._constant(name, inverse)
        base, own = self._view(name)
        return base if own == axes else self._transposed(self._value(name), inverse)

    def _constant(self, name: str, inverse: Axes) -> str:
        base = self._view(name)[0]
        shape = self.graph.shapes[base]
        if all(extent == 1 for extent in shape):
            return self.graph.formed(base, ("reshape", ())) if shape else base
        whole = (1,) * (len(inverse) - len(shape)) + tuple(shape)
        steps: Sequence[Any] = [("reshape", whole)] if whole != tuple(shape) else []
        return self.graph.formed(base, *steps, ("transpose", inverse))

    def _keep(self, node: onnx.NodeProto) -> None:
        self.nodes.append(_changed(node, [self._value(name) for name in node.input]))

    def _value(self, name: str) -> str:
        """Return a value that is what a view says."""
        if name not in self.views:
            return name
        base, axes = self.views[name]
        if not axes:
            return base
        return self._transposed(base, axes)

    def _transposed(self, name: str, axes: Axes) -> str:
        if (name, axes) not in self.made:
            self.made[name, axes] = made = self.graph.unused(f"{name}.transposed")
            self.graph.types[made] = self.graph.types[name]
            if (shape := self.graph.shapes.get(name)) is not None:
                self.graph.shapes[made] = tuple(shape[axis] for axis in axes)
            self.nodes.append(helper.make_node("Transpose", [name], [made], perm=axes))
        return self.made[name, axes]


def _changed(node: onnx.NodeProto, operands: Sequence[str], result: str | None = None) -> onnx.NodeProto:
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[:] = operands
    if result is not None:
        changed.output[:] = [result]
    return changed


def _set(node: onnx.NodeProto, name: str, value: int) -> None:
    next(attribute for attribute in node.attribute if attribute.name == name).i = value

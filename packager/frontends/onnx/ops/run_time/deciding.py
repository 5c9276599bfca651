"""Finds integers that a run computes from data and that decide shapes, and bounds them.

``ReduceMax(lengths) -> Range`` has an extent that no dim says. The scalar is made a run-time extent where it leaves the
data, so that all arithmetic after it is shape arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from tvm import relax, tirx

from packager.frontends.onnx.graph.nodes import attributes_of, is_standard
from packager.frontends.onnx.ops.shapes.arithmetic import SHAPE_INPUTS
from packager.frontends.onnx.ops.shapes.rules import FUNCTIONS

INTEGERS = (TensorProto.INT64, TensorProto.INT32)
# Longer vectors are no shapes.
MAX_RANK = 8
# Operators whose shape operands are plain extents; others count from the end, or say -1, and read it by themselves
# (``ops.run_time.shapes``).
PLAIN = ("Range", "ConstantOfShape", "Expand", "Tile", "Resize")
# Operators that only place elements.
STRUCTURAL = ("Concat", "Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape", "Expand")
Bound = Any  # an integer, an expression over dims, or None


def deciding_values(graph: onnx.GraphProto) -> dict[str, bool]:
    """Return the values that reach a shape by shape arithmetic, so that what they are computed from decides it.

    A value is mapped to True if it has to be an extent. Otherwise it is better an extent if it has a bound, but may be
    a tensor: an operand of arithmetic, or what only reaches shapes of Reshape.
    """
    deciding: dict[str, bool] = {}
    for node in reversed(graph.node):
        if not is_standard(node):
            continue
        places = [place for place in SHAPE_INPUTS.get(node.op_type, ()) if place < len(node.input)]
        if node.op_type in PLAIN:
            deciding.update((node.input[place], True) for place in places)
        elif node.op_type == "Reshape":
            deciding.setdefault(node.input[1], False)
        wanted = [deciding[name] for name in node.output if name in deciding]
        if node.op_type in FUNCTIONS and wanted:
            # Operands of arithmetic may be negative where its result is an extent.
            must = node.op_type in STRUCTURAL and any(wanted)
            for name in node.input:
                deciding[name] = deciding.get(name, False) or must
    deciding.pop("", None)
    return deciding


class Bounds:
    """Upper bounds of integer tensors, by the nodes that compute them.

    ``extents_of(name)`` returns the shape of a value, ``known(name)`` its elements if it is shape arithmetic or a
    constant, else None.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        types: Mapping[str, int],
        extents_of: Callable[[str], Sequence[Any] | None],
        known: Callable[[str], Any],
    ) -> None:
        self.producers = {name: node for node in graph.node for name in node.output}
        self.types = types
        self.extents_of = extents_of
        self.known = known

    def bound(self, name: str, depth: int = 32) -> Bound:
        """Return an upper bound of the elements of a value, which are not negative; None if there is none."""
        if self.types.get(name) == TensorProto.BOOL:
            return 1
        elements = self.known(name)
        if elements is not None:
            return _largest([*np.asarray(elements, dtype=object).reshape(-1)])
        node = self.producers.get(name)
        if node is None or not depth or not is_standard(node):
            return None
        rule = _RULES.get(node.op_type)
        return None if rule is None else rule(self, node, depth - 1)

    def of_inputs(self, node: onnx.NodeProto, depth: int, first: int = 0, last: int | None = None) -> list[Bound]:
        """Return the bounds of a range of a node's inputs."""
        return [self.bound(name, depth) for name in node.input[first:last]]


def _largest(bounds: Sequence[Bound]) -> Bound:
    if not bounds or any(bound is None for bound in bounds):
        return None
    result = bounds[0]
    for bound in bounds[1:]:
        result = max(result, bound) if isinstance(result, int) and isinstance(bound, int) else tirx.max(result, bound)
    return result


def _least(bounds: Sequence[Bound]) -> Bound:
    found = [bound for bound in bounds if bound is not None]
    result = found[0] if found else None
    for bound in found[1:]:
        result = min(result, bound) if isinstance(result, int) and isinstance(bound, int) else tirx.min(result, bound)
    return result


def _first(bounds: Bounds, node: onnx.NodeProto, depth: int) -> Bound:
    return bounds.bound(node.input[0], depth)


def _index(bounds: Bounds, node: onnx.NodeProto, _depth: int) -> Bound:
    extents = bounds.extents_of(node.input[0])
    return None if extents is None else extents[attributes_of(node).get("axis", 0)]


def _sum(bounds: Bounds, node: onnx.NodeProto, depth: int) -> Bound:
    """Bound a sum by the bound of an element times the number of elements that a result sums."""
    each, extents = bounds.bound(node.input[0], depth), bounds.extents_of(node.input[0])
    result = bounds.extents_of(node.output[0])
    if each is None or extents is None or result is None:
        return None
    attributes = attributes_of(node)
    axes = bounds.known(node.input[1]) if len(node.input) > 1 and node.input[1] else attributes.get("axes")
    named = range(len(extents)) if axes is None else [int(axis) for axis in np.asarray(axes).reshape(-1)]
    return math.prod([each, *(extents[axis] for axis in named)])


def _add(bounds: Bounds, node: onnx.NodeProto, depth: int) -> Bound:
    left, right = bounds.of_inputs(node, depth)
    return None if left is None or right is None else left + right


def _multiply(bounds: Bounds, node: onnx.NodeProto, depth: int) -> Bound:
    left, right = bounds.of_inputs(node, depth)
    return None if left is None or right is None else left * right


_RULES: Mapping[str, Callable[[Bounds, onnx.NodeProto, int], Bound]] = {
    **dict.fromkeys(("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Gather"), _first),
    **dict.fromkeys(("Slice", "ReduceMax", "ReduceMin", "Expand", "GatherElements", "Sub", "Div", "Abs"), _first),
    **dict.fromkeys(("ArgMax", "ArgMin"), _index),
    **dict.fromkeys(("Concat", "Max"), lambda bounds, node, depth: _largest(bounds.of_inputs(node, depth))),
    "Where": lambda bounds, node, depth: _largest(bounds.of_inputs(node, depth, 1)),
    "Min": lambda bounds, node, depth: _least(bounds.of_inputs(node, depth)),
    "ReduceSum": _sum,
    "Add": _add,
    "Mul": _multiply,
}


def is_small(value: Any) -> bool:
    """Tell whether a tensor is a scalar or a short vector of known length."""
    shape = getattr(value.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or len(shape.values) > 1:
        return False
    return all(isinstance(extent, tirx.IntImm) and 0 < int(extent) <= MAX_RANK for extent in shape.values)

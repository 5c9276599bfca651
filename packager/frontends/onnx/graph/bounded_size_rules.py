"""Propagation rules: which output axis inherits an operand's bounded size.

A bounded axis is allocated at its upper bound; its first ``count`` slices are valid, the others undefined. A rule
applies only if valid slices of the result depend on valid slices alone. Undefined indices are harmless, since indices
are clamped (``packager.transforms.clamp_indices``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from packager.frontends.onnx.graph.fold_constants import Constants, Extents
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import attributes_of


class CannotPropagateError(Exception):
    """A node mixes valid and undefined slices; the message says how."""


@dataclass(frozen=True)
class BoundedAxis:
    """The bounded axis of a value, and the name of its valid count."""

    axis: int
    count: str


class Operands:
    """The inputs of a node: their inferred types, constants, and bounded axes."""

    def __init__(
        self,
        node: onnx.NodeProto,
        bounded: Mapping[str, BoundedAxis],
        inferred: Inferred,
        constants: Constants,
    ) -> None:
        self.node = node
        self.attributes = attributes_of(node)
        self.bounded = [bounded.get(name) for name in node.input]
        self._inferred = inferred
        self._constants = constants

    def one(self, index: int = 0) -> BoundedAxis:
        """Return the bounded axis of the only input that has one. Raises CannotPropagateError if another does."""
        found = self.bounded[index] if index < len(self.bounded) else None
        if found is None or any(other is not None for i, other in enumerate(self.bounded) if i != index):
            raise CannotPropagateError("another input has a bounded size")
        return found

    def extents(self, index: int) -> Extents:
        """Return the extents of an input or constant. Raises CannotPropagateError if its rank is unknown."""
        name = self.node.input[index]
        if name in self._constants:
            return tuple(self._constants.tensors[name].dims)
        if name not in self._inferred.extents:
            raise CannotPropagateError(f"the rank of {name!r} is unknown")
        return self._inferred.extents[name]

    def rank(self, index: int) -> int:
        """Return the rank of an input."""
        return len(self.extents(index))

    def integers(self, index: int, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return integers given by an input or attribute. Raises CannotPropagateError if they are unknown."""
        if index < len(self.node.input) and self.node.input[index]:
            if self.node.input[index] not in self._constants:
                raise CannotPropagateError(f"its {name} are unknown")
            return [int(value) for value in self._constants.array(self.node.input[index]).reshape(-1)]
        if name in self.attributes:
            return [int(value) for value in self.attributes[name]]
        if default is None:
            raise CannotPropagateError(f"its {name} depend on the size")
        return list(default)

    def is_float(self, index: int) -> bool:
        """Tell whether an input is known to be floating point."""
        kind = self._inferred.types.get(self.node.input[index], 0)
        return kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an axis attribute, normalized to [0, rank)."""
        return int(self.attributes.get(name, default)) % rank


def _elementwise(given: Operands) -> BoundedAxis:
    """Require operands without the bounded axis to have the extent 1 there."""
    ranks = [given.rank(index) for index in range(len(given.node.input))]
    rank = max(ranks)
    found = {
        BoundedAxis(s.axis + rank - r, s.count) for s, r in zip(given.bounded, ranks, strict=True) if s is not None
    }
    if len(found) > 1:
        raise CannotPropagateError("its inputs have different sizes")
    (result,) = found
    for index, (bounded, own) in enumerate(zip(given.bounded, ranks, strict=True)):
        axis = result.axis - (rank - own)
        if bounded is None and axis >= 0 and given.extents(index)[axis] != 1:
            raise CannotPropagateError("its inputs have different sizes")
    return result


def _first_only(given: Operands) -> BoundedAxis:
    """Keep the first input's axis; other inputs are scalars (Clip)."""
    return given.one()


def _transpose(given: Operands) -> BoundedAxis:
    bounded, rank = given.one(), given.rank(0)
    order = [int(axis) for axis in given.attributes.get("perm", range(rank)[::-1])]
    return BoundedAxis(order.index(bounded.axis), bounded.count)


def _squeeze(given: Operands) -> BoundedAxis:
    bounded, rank = given.one(), given.rank(0)
    axes = [axis % rank for axis in given.integers(1, "axes")]
    if bounded.axis in axes:
        raise CannotPropagateError("it drops the axis")
    return BoundedAxis(bounded.axis - sum(axis < bounded.axis for axis in axes), bounded.count)


def _unsqueeze(given: Operands) -> BoundedAxis:
    bounded, axes = given.one(), given.integers(1, "axes")
    rank = given.rank(0) + len(axes)
    new = {axis % rank for axis in axes}
    return BoundedAxis([axis for axis in range(rank) if axis not in new][bounded.axis], bounded.count)


def _flatten(given: Operands) -> BoundedAxis:
    bounded, rank = given.one(), given.rank(0)
    axis = int(given.attributes.get("axis", 1))
    axis += rank if axis < 0 else 0
    other = [extent for i, extent in enumerate(given.extents(0)) if i != bounded.axis]
    before = other[:axis] if bounded.axis >= axis else other[: axis - 1]
    after = other[len(before) :]
    lone = before if bounded.axis < axis else after
    if bounded.axis >= rank or any(extent != 1 for extent in lone):
        raise CannotPropagateError("it merges the axis with others")
    return BoundedAxis(0 if bounded.axis < axis else 1, bounded.count)


def _reshape(given: Operands) -> BoundedAxis:
    """Find the axis of the target shape with the same number of elements before and after it."""
    bounded, extents = given.one(), given.extents(0)
    target = given.integers(1, "shape")
    for index, extent in enumerate(extents[: len(target)]):
        if target[index] == 0 and index != bounded.axis and extent is not None:
            target[index] = extent
    outer, inner = extents[: bounded.axis], extents[bounded.axis + 1 :]
    if None in (*outer, *inner) or given.attributes.get("allowzero", 0):
        raise CannotPropagateError("extents of its input are unknown")
    for index, wanted in enumerate(target):
        if wanted not in (-1, 0) or (wanted == 0 and index != bounded.axis):
            continue
        rest = [*target[:index], *target[index + 1 :]]
        if any(extent <= 0 for extent in rest):
            continue
        if math.prod(target[:index]) == math.prod(outer) and math.prod(target[index + 1 :]) == math.prod(inner):  # type: ignore[arg-type]
            return BoundedAxis(index, bounded.count)
    raise CannotPropagateError("it merges the axis with others")


def _gather(given: Operands) -> BoundedAxis:
    """Gather from static data by bounded indices, or from bounded data along another axis by static indices."""
    data, indices = given.bounded[:2]
    axis = given.axis("axis", 0, given.rank(0))
    if data is None and indices is not None:
        return BoundedAxis(axis + indices.axis, indices.count)
    bounded = given.one()
    if bounded.axis == axis:
        raise CannotPropagateError("it takes slices that may be undefined")
    return bounded if bounded.axis < axis else BoundedAxis(bounded.axis + given.rank(1) - 1, bounded.count)


def _gather_nd(given: Operands) -> BoundedAxis:
    bounded = given.one(1)
    if given.attributes.get("batch_dims", 0) or bounded.axis == given.rank(1) - 1:
        raise CannotPropagateError("its indices are not rows")
    return bounded


def _concat(given: Operands) -> BoundedAxis:
    found = set(given.bounded)
    bounded = next(iter(found))
    if len(found) > 1 or bounded is None:
        raise CannotPropagateError("its inputs have different sizes")
    if given.axis("axis", 0, given.rank(0)) == bounded.axis:
        raise CannotPropagateError("it concatenates along the axis")
    return bounded


def _another_axis(default: int) -> Callable[[Operands], BoundedAxis]:
    """Return a rule for operators along one axis, which must be another: TopK, Split."""

    def rule(given: Operands) -> BoundedAxis:
        bounded = given.one()
        if given.axis("axis", default, given.rank(0)) == bounded.axis:
            raise CannotPropagateError("it works along the axis")
        return bounded

    return rule


def _softmax(given: Operands) -> BoundedAxis:
    """Before opset 13 softmax flattens the axes from ``axis`` on, by default 1."""
    bounded, rank = given.one(), given.rank(0)
    if bounded.axis >= min(given.axis("axis", -1, rank), rank - 1 if "axis" in given.attributes else 1) or rank < 2:
        raise CannotPropagateError("it works along the axis")
    return bounded


def _layer_norm(given: Operands) -> BoundedAxis:
    bounded = given.one()
    if bounded.axis >= given.axis("axis", -1, given.rank(0)):
        raise CannotPropagateError("it works along the axis")
    return bounded


def _rows(given: Operands) -> BoundedAxis:
    """Keep the batch axis (rows of Gemm, images of Conv), which must be the first."""
    bounded = given.one()
    if (
        bounded.axis
        or given.attributes.get("transA", 0)
        or given.attributes.get("training_mode", 0)
        or (given.node.op_type == "Gemm" and _has_rows(given))
    ):
        raise CannotPropagateError("it combines slices along the axis")
    return bounded


def _has_rows(given: Operands) -> bool:
    return len(given.node.input) > 2 and bool(given.node.input[2]) and given.rank(2) > 1 and given.extents(2)[0] != 1


def _matmul(given: Operands) -> BoundedAxis:
    bounded = given.one()
    if bounded.axis == given.rank(0) - 1 or given.rank(1) != 2:
        raise CannotPropagateError("it sums over the axis")
    return bounded


def _regions(given: Operands) -> BoundedAxis:
    """RoiAlign: one result per region of interest."""
    image, regions, batch = given.bounded
    if image is not None or regions is None or regions.axis or batch != regions:
        raise CannotPropagateError("its inputs have different sizes")
    return regions


UNARY = {
    *("Identity", "Cast", "Not", "Neg", "Abs", "Sqrt", "Exp", "Log", "Floor", "Ceil", "Round", "Sign", "Reciprocal"),
    *("Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Gelu", "Softplus"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "IsNaN", "IsInf", "BitwiseNot", "Swish", "Mish", "Celu"),
}
BINARY = {
    *("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "Where", "Equal", "Less", "LessOrEqual", "Greater"),
    *("GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
}
RULES: Mapping[str, Callable[[Operands], BoundedAxis]] = {
    **dict.fromkeys(UNARY, _first_only),
    **dict.fromkeys(BINARY, _elementwise),
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Gemm"), _rows),
    **dict.fromkeys(("GlobalMaxPool", "BatchNormalization"), _rows),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "TopK": _another_axis(-1),
    "Split": _another_axis(0),
    "Clip": _first_only,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "LayerNormalization": _layer_norm,
    "MatMul": _matmul,
    "RoiAlign": _regions,
}


def propagated(given: Operands) -> BoundedAxis:
    """Return the bounded axis of a node's outputs. Raises CannotPropagateError."""
    operator = given.node.op_type
    rule = RULES.get(operator)
    if rule is None:
        raise CannotPropagateError("it is not known to keep the axis")
    if operator in ("Div", "Mod") and given.bounded[1] is not None and not given.is_float(1):
        raise CannotPropagateError("it divides integers by undefined values, which may be 0")
    return rule(given)

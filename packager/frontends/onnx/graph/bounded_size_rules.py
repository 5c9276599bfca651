"""How a node passes on that one axis of its operands has a count: which axis of its result has the same.

A value's axis has room for the most that there can be, of which the first ``count`` slices are what the model means,
and the others anything. A rule says where the result's slices are, if those that count depend on none that does not.
Indices are clamped into their tensors (``packager.transforms.clamp_indices``), so the others harm nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from packager.frontends.onnx.graph.fold_constants import Constants, Extents
from packager.frontends.onnx.graph.infer_shapes import Inferred


class CannotCarryError(Exception):
    """A node mixes slices that count with others: why."""


@dataclass(frozen=True)
class Sized:
    """Which axis of a value has a count, and the name of that count."""

    axis: int
    count: str


class Operands:
    """A node, what is known of its inputs, and which of these have counts."""

    def __init__(
        self,
        node: onnx.NodeProto,
        sized: Mapping[str, Sized],
        inferred: Inferred,
        constants: Constants,
    ) -> None:
        self.node = node
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.sized = [sized.get(name) for name in node.input]
        self._inferred = inferred
        self._constants = constants

    def one(self, place: int = 0) -> Sized:
        """Return the count of an input that alone has one. Raises CannotCarryError if another does."""
        found = self.sized[place] if place < len(self.sized) else None
        if found is None or any(other is not None for i, other in enumerate(self.sized) if i != place):
            raise CannotCarryError("of its inputs another has the size")
        return found

    def extents(self, place: int) -> Extents:
        """Return the extents of an input; of a constant too. Raises CannotCarryError without a rank."""
        name = self.node.input[place]
        if name in self._constants:
            return tuple(self._constants.tensors[name].dims)
        if name not in self._inferred.extents:
            raise CannotCarryError(f"the rank of {name!r} is not known")
        return self._inferred.extents[name]

    def rank(self, place: int) -> int:
        """Return the rank of an input."""
        return len(self.extents(place))

    def integers(self, place: int, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return integers that are an input or an attribute. Raises CannotCarryError where they are not known."""
        if place < len(self.node.input) and self.node.input[place]:
            if self.node.input[place] not in self._constants:
                raise CannotCarryError(f"its {name} are not known")
            return [int(value) for value in self._constants.array(self.node.input[place]).reshape(-1)]
        if name in self.attributes:
            return [int(value) for value in self.attributes[name]]
        if default is None:
            raise CannotCarryError(f"its {name} depend on the size")
        return list(default)

    def is_float(self, place: int) -> bool:
        """Whether an input is known to hold floats."""
        kind = self._inferred.types.get(self.node.input[place], 0)
        return kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

    def axis(self, name: str, default: int, rank: int) -> int:
        """Return an axis that is an attribute."""
        return int(self.attributes.get(name, default)) % rank


def _elementwise(given: Operands) -> Sized:
    """Operands broadcast: those without the count have the extent 1 along its axis."""
    ranks = [given.rank(place) for place in range(len(given.node.input))]
    rank = max(ranks)
    found = {Sized(s.axis + rank - r, s.count) for s, r in zip(given.sized, ranks, strict=True) if s is not None}
    if len(found) > 1:
        raise CannotCarryError("its inputs have different sizes")
    (result,) = found
    for place, (sized, own) in enumerate(zip(given.sized, ranks, strict=True)):
        axis = result.axis - (rank - own)
        if sized is None and axis >= 0 and given.extents(place)[axis] != 1:
            raise CannotCarryError("its inputs have different sizes")
    return result


def _first_only(given: Operands) -> Sized:
    """The other operands are numbers: Clip."""
    return given.one()


def _transpose(given: Operands) -> Sized:
    sized, rank = given.one(), given.rank(0)
    order = [int(axis) for axis in given.attributes.get("perm", range(rank)[::-1])]
    return Sized(order.index(sized.axis), sized.count)


def _squeeze(given: Operands) -> Sized:
    sized, rank = given.one(), given.rank(0)
    axes = [axis % rank for axis in given.integers(1, "axes")]
    if sized.axis in axes:
        raise CannotCarryError("it drops the axis")
    return Sized(sized.axis - sum(axis < sized.axis for axis in axes), sized.count)


def _unsqueeze(given: Operands) -> Sized:
    sized, axes = given.one(), given.integers(1, "axes")
    rank = given.rank(0) + len(axes)
    new = {axis % rank for axis in axes}
    return Sized([axis for axis in range(rank) if axis not in new][sized.axis], sized.count)


def _flatten(given: Operands) -> Sized:
    sized, rank = given.one(), given.rank(0)
    axis = int(given.attributes.get("axis", 1))
    axis += rank if axis < 0 else 0
    other = [extent for i, extent in enumerate(given.extents(0)) if i != sized.axis]
    before = other[:axis] if sized.axis >= axis else other[: axis - 1]
    after = other[len(before) :]
    lone = before if sized.axis < axis else after
    if sized.axis >= rank or any(extent != 1 for extent in lone):
        raise CannotCarryError("it joins the axis with others")
    return Sized(0 if sized.axis < axis else 1, sized.count)


def _reshape(given: Operands) -> Sized:
    """The axis stays one of its own, with as many elements before it and behind it."""
    sized, extents = given.one(), given.extents(0)
    target = given.integers(1, "shape")
    for place, extent in enumerate(extents[: len(target)]):
        if target[place] == 0 and place != sized.axis and extent is not None:
            target[place] = extent
    outer, inner = extents[: sized.axis], extents[sized.axis + 1 :]
    if None in (*outer, *inner) or given.attributes.get("allowzero", 0):
        raise CannotCarryError("extents of its input are not known")
    for place, wanted in enumerate(target):
        if wanted not in (-1, 0) or (wanted == 0 and place != sized.axis):
            continue
        rest = [*target[:place], *target[place + 1 :]]
        if any(extent <= 0 for extent in rest):
            continue
        if math.prod(target[:place]) == math.prod(outer) and math.prod(target[place + 1 :]) == math.prod(inner):  # type: ignore[arg-type]
            return Sized(place, sized.count)
    raise CannotCarryError("it joins the axis with others")


def _gather(given: Operands) -> Sized:
    """Rows of data without a count at indices that have one, or the other way round along another axis."""
    data, indices = given.sized[:2]
    axis = given.axis("axis", 0, given.rank(0))
    if data is None and indices is not None:
        return Sized(axis + indices.axis, indices.count)
    sized = given.one()
    if sized.axis == axis:
        raise CannotCarryError("it takes slices that may not be there")
    return sized if sized.axis < axis else Sized(sized.axis + given.rank(1) - 1, sized.count)


def _gather_nd(given: Operands) -> Sized:
    sized = given.one(1)
    if given.attributes.get("batch_dims", 0) or sized.axis == given.rank(1) - 1:
        raise CannotCarryError("its indices are not rows")
    return sized


def _concat(given: Operands) -> Sized:
    found = set(given.sized)
    sized = next(iter(found))
    if len(found) > 1 or sized is None:
        raise CannotCarryError("its inputs have different sizes")
    if given.axis("axis", 0, given.rank(0)) == sized.axis:
        raise CannotCarryError("it joins parts along the axis")
    return sized


def _another_axis(default: int) -> Callable[[Operands], Sized]:
    """Work along one axis, which is another: Softmax, Split, CumSum."""

    def rule(given: Operands) -> Sized:
        sized = given.one()
        if given.axis("axis", default, given.rank(0)) == sized.axis:
            raise CannotCarryError("it works along the axis")
        return sized

    return rule


def _softmax(given: Operands) -> Sized:
    """Before version 13 it works along all axes from its own on, which is 1 where it is not given."""
    sized, rank = given.one(), given.rank(0)
    if sized.axis >= min(given.axis("axis", -1, rank), rank - 1 if "axis" in given.attributes else 1) or rank < 2:
        raise CannotCarryError("it works along the axis")
    return sized


def _layer_norm(given: Operands) -> Sized:
    sized = given.one()
    if sized.axis >= given.axis("axis", -1, given.rank(0)):
        raise CannotCarryError("it works along the axis")
    return sized


def _rows(given: Operands) -> Sized:
    """A product with the data's rows, or images of a batch: the first axis."""
    sized = given.one()
    if (
        sized.axis
        or given.attributes.get("transA", 0)
        or given.attributes.get("training_mode", 0)
        or (given.node.op_type == "Gemm" and _has_rows(given))
    ):
        raise CannotCarryError("it computes with all of the axis")
    return sized


def _has_rows(given: Operands) -> bool:
    return len(given.node.input) > 2 and bool(given.node.input[2]) and given.rank(2) > 1 and given.extents(2)[0] != 1


def _matmul(given: Operands) -> Sized:
    sized = given.one()
    if sized.axis == given.rank(0) - 1 or given.rank(1) != 2:
        raise CannotCarryError("it sums over the axis")
    return sized


def _regions(given: Operands) -> Sized:
    """RoiAlign: a region of interest for each."""
    image, regions, batch = given.sized
    if image is not None or regions is None or regions.axis or batch != regions:
        raise CannotCarryError("its inputs have different sizes")
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
RULES: Mapping[str, Callable[[Operands], Sized]] = {
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


def carried(given: Operands) -> Sized:
    """Return which axis of the results of a node has a count. Raises CannotCarryError."""
    operator = given.node.op_type
    rule = RULES.get(operator)
    if rule is None:
        raise CannotCarryError("it is not known to keep the axis")
    if operator in ("Div", "Mod") and given.sized[1] is not None and not given.is_float(1):
        raise CannotCarryError("it divides integers by what may be 0")
    return rule(given)

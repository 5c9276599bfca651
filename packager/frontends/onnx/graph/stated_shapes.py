"""Takes parameters of operators that data give from the shapes that the file states for the results.

A shape, a number of repetitions or a depth that is an input of the model, or computed from inputs, follows from the
extents of the result where the file declares these. What does not follow, positions and axes that the extents leave
open, is computed by each run. Parameters that are computed from shapes are left to the importer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from packager.frontends.onnx.graph.contrib.body import Body, NotYetError
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import is_standard, rewrite_nodes, standard_version, title_of

SIZES = "packager_sizes"  # attribute with the stated extents of the result, for ``ops.nn.resize``
# Values that are computed from shapes, or have sizes that data give.
NOT_FOLLOWED = ("Shape", "Size", "NonZero", "Compress", "Unique", "NonMaxSuppression", "If", "Loop", "Scan")
UNARY = ("Identity", "Cast", "CastLike", "Sqrt", "Log", "Exp", "Abs", "Neg", "Reciprocal", "Relu", "Sigmoid", "Tanh")
# More ways to reduce axes to the stated extents are not tried.
MAX_WAYS = 6
Shape = tuple[int, ...]


def follow_stated_shapes(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Rewrite the nodes whose parameters follow from stated shapes; return whether there were any."""
    graph, opset = model.graph, standard_version(model) or 1
    given = _of_data(graph)
    _hand_back(graph, inferred)

    def rewritten(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        places, rule = RULES.get(node.op_type, ((), None)) if is_standard(node) else ((), None)
        if rule is None or not given.intersection(node.input[place] for place in places if place < len(node.input)):
            return None
        body = Body(node, inferred, constants, f"{title_of(node)}.stated.{index}.", opset)
        try:
            results = rule(body)
        except (NotYetError, _NotStatedError):
            return None
        for name, result in zip(node.output, results, strict=False):
            if name and result:
                body.nodes.append(helper.make_node("Identity", [result], [name], name=title_of(node)))
        return body.nodes

    return rewrite_nodes(graph, rewritten)


def _hand_back(graph: onnx.GraphProto, inferred: Inferred) -> None:
    """Add the extents of values that operators on elements take, where those of their results are stated."""
    for node in reversed(graph.node):
        known = inferred.extents.get(node.output[0]) if is_standard(node, *UNARY) else None
        if known is not None and None not in known:
            inferred.extents[node.input[0]] = known


class _NotStatedError(Exception):
    """The extents of a result are unknown."""


def _of_data(graph: onnx.GraphProto) -> set[str]:
    """Return the values that are inputs, or computed from inputs by operators whose results have known shapes, and
    without shapes."""
    found = {value.name for value in graph.input}
    others: set[str] = set()
    for node in graph.node:
        names = {name for name in node.input if name}
        if node.op_type in NOT_FOLLOWED or names & others:
            others.update(node.output)
        elif names & found:
            found.update(name for name in node.output if name)
    return found


def _static(b: Body, name: str) -> Shape:
    known = [extent for extent in b.extents(name) if extent is not None]
    if not name or len(known) != len(b.extents(name)):
        raise _NotStatedError
    return tuple(known)


def _given(b: Body, place: int, values: Sequence[int] | int) -> list[str]:
    """Write the node with an input that is constant."""
    operands = list(b.node.input)
    operands[place] = b.array(values, np.int64)
    return b.several(b.node.op_type, operands, len(b.node.output), **b.attributes)


def _by_extents(place: int) -> _Rule:
    return lambda b: _given(b, place, _static(b, b.output(0)))


def _reshaped(b: Body) -> list[str]:
    return [b("Reshape", b.input(0), b.integers(*_static(b, b.output(0))))]


def _tile(b: Body) -> list[str]:
    old, new = _static(b, b.input(0)), _static(b, b.output(0))
    if 0 in old:
        raise _NotStatedError
    return _given(b, 1, [n // o for n, o in zip(new, old, strict=True)])


def _at_axis(place: int, default: int) -> _Rule:
    """The extent of the result along the node's axis."""

    def rule(b: Body) -> list[str]:
        extents = _static(b, b.output(0))
        size = extents[b.flag("axis", default) % len(extents)]
        return _given(b, place, size if b.node.op_type == "OneHot" else [size])

    return rule


def _split(b: Body) -> list[str]:
    axis = b.flag("axis")
    return _given(b, 1, [_static(b, name)[axis] for name in b.node.output])


def _at_axes(place: int) -> _Rule:
    """The extents of the result along the node's axes."""

    def rule(b: Body) -> list[str]:
        extents = _static(b, b.output(0))
        return _given(b, place, [extents[axis] for axis in b.flag("axes", range(len(extents)))])

    return rule


def _resize(b: Body) -> list[str]:
    """Sizes are those of the result; scales and regions are left to the run, which needs to know the sizes."""
    if SIZES in b.attributes:
        raise _NotStatedError
    extents = _static(b, b.output(0))
    operands = list(b.node.input)
    if len(operands) > 3 and operands[3] and b.flag("keep_aspect_ratio_policy", "stretch") == "stretch":
        operands[3] = b.integers(*(extents[axis] for axis in b.flag("axes", range(len(extents)))))
    return b.several(b.node.op_type, operands, 1, **b.attributes, **{SIZES: list(extents)})


def _affine_grid(b: Body) -> list[str]:
    batch, *extents, _ = _static(b, b.output(0))
    return _given(b, 1, [batch, 1, *extents])  # the number of channels does not count


def _range(b: Body) -> list[str]:
    (count,) = _static(b, b.output(0))
    kind = b.type_of(b.input(0))
    steps = b("Cast", b.integers(*range(count)), to=kind)
    return [b("Add", b("Mul", steps, b.input(2)), b.input(0))]


def _cumulative(b: Body) -> list[str]:
    """Compute along each axis, and choose."""
    rank = len(b.extents(b.input(0)))
    axis = b("Mod", b("Cast", b.input(1), to=TensorProto.INT64), b.array(rank, np.int64))
    ways = [b(b.node.op_type, b.input(0), b.array(number, np.int64), **b.attributes) for number in range(rank)]
    return [_chosen(b, ways, axis, range(rank))]


def _chosen(b: Body, ways: Sequence[str], code: str, codes: Sequence[int]) -> str:
    """Return the way whose code is the one that a run computes; the last one if there is none."""
    result = ways[-1]
    for way, number in zip(ways[:-1], codes[:-1], strict=True):
        result = b("Where", b("Equal", code, b.array(number, np.int64)), way, result)
    return result


def _reduced(b: Body) -> list[str]:
    """Reduce the axes that give the stated extents; where several do, choose by the axes of the run."""
    old, new, keeps = _static(b, b.input(0)), _static(b, b.output(0)), b.flag("keepdims", 1)
    (count,) = _static(b, b.input(1))
    rank = len(old)
    if count == 0:
        raise _NotStatedError

    def extents(axes: Sequence[int]) -> Shape:
        kept = [1 if axis in axes else extent for axis, extent in enumerate(old)]
        return tuple(extent for axis, extent in enumerate(kept) if keeps or axis not in axes)

    fitting = [axes for axes in itertools.combinations(range(rank), count) if extents(axes) == new]
    if not 0 < len(fitting) <= MAX_WAYS:
        raise _NotStatedError
    ways = [b(b.node.op_type, b.input(0), b.integers(*axes), **b.attributes) for axes in fitting]
    if len(ways) == 1:
        return ways
    places = b("Mod", b.input(1), b.array(rank, np.int64))
    flags = b("Gather", b.integers(*(1 << axis for axis in range(rank))), places)
    code = b("ReduceSum", flags, b.integers(0), keepdims=0)
    return [_chosen(b, ways, code, [sum(1 << axis for axis in axes) for axes in fitting])]


def _sum(b: Body, x: str) -> str:
    """Return the sum over axis 0."""
    return b("ReduceSum", x, b.integers(0), keepdims=0) if b.opset >= 13 else b("ReduceSum", x, axes=[0], keepdims=0)


def _named(b: Body, place: int, count: int, rank: int) -> str:
    """Return which of the rank axes each of ``count`` parameters is for, as a matrix of 0 and 1."""
    axes = b.integers(*range(count))
    if b.input(place):
        axes = b("Mod", b("Cast", b.input(place), to=TensorProto.INT64), b.array(rank, np.int64))
    same = b("Equal", b.unsqueezed(axes, 1), b.integers(*range(rank)))
    return b("Cast", same, to=TensorProto.INT64)


def _slice(b: Body) -> list[str]:
    """Gather from the start of the run along each axis."""
    old, new = _static(b, b.input(0)), _static(b, b.output(0))
    rank, wide = len(old), TensorProto.INT64
    (count,) = _static(b, b.input(1))
    named = _named(b, 3, count, rank)

    def of_axes(values: str) -> str:
        return _sum(b, b("Mul", named, b.unsqueezed(values, 1)))

    start, size, zero, one = of_axes(b("Cast", b.input(1), to=wide)), b.integers(*old), *map(b.integers, (0, 1))
    steps = b("Cast", b.input(4), to=wide) if b.input(4) else b.integers(*[1] * count)
    step = b("Add", of_axes(steps), b("Sub", one, of_axes(b.integers(*[1] * count))))
    start = b("Where", b("Less", start, zero), b("Add", start, size), start)
    last = b("Where", b("Less", step, zero), b("Sub", size, one), size)
    start = b("Min", b("Max", start, zero), last)
    result = b.input(0)
    for axis, extent in enumerate(new):
        first, by = (b("Gather", vector, b.array(axis, np.int64)) for vector in (start, step))
        places = b("Add", first, b("Mul", b.integers(*range(extent)), by))
        result = b("Gather", result, places, axis=axis)
    return [result]


def _pad(b: Body) -> list[str]:
    """Gather along each axis, from the positions that the mode says."""
    old, new, mode = _static(b, b.input(0)), _static(b, b.output(0)), b.flag("mode", "constant")
    rank, count = len(old), _static(b, b.input(1))[0] // 2
    if 0 in old:
        raise _NotStatedError
    pads = b("Slice", b("Cast", b.input(1), to=TensorProto.INT64), b.integers(0), b.integers(count))
    before = _sum(b, b("Mul", _named(b, 3, count, rank), b.unsqueezed(pads, 1)))
    value = b("Reshape", b.input(2) or b.number(0, b.input(0)), b.array(np.empty(0), np.int64))
    result, zero = b.input(0), b.array(0, np.int64)
    for axis, (extent, made) in enumerate(zip(old, new, strict=True)):
        size, last = b.array(extent, np.int64), b.array(extent - 1, np.int64)
        places = b("Sub", b.integers(*range(made)), b("Gather", before, b.array(axis, np.int64)))
        safe = b("Max", b("Min", places, last), zero)
        if mode == "reflect":
            period = b.array(max(1, 2 * (extent - 1)), np.int64)
            turn = b("Mod", places, period)
            safe = b("Min", turn, b("Sub", period, turn))
        elif mode == "wrap":
            safe = b("Mod", places, size)
        result = b("Gather", result, safe, axis=axis)
        if mode == "constant":
            column = b.integers(*(-1 if other == axis else 1 for other in range(rank)))
            inside = b("Equal", safe, places)
            result = b("Where", b("Reshape", inside, column), result, value)
    return [result]


# Writes a node anew, and returns its outputs. Raises _NotStatedError, and NotYetError.
_Rule = Callable[[Body], list[str]]
WINDOWS = ("HannWindow", "HammingWindow", "BlackmanWindow")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
# The inputs that are parameters, and the rule.
RULES: Mapping[str, tuple[tuple[int, ...], _Rule]] = {
    **{name: ((1,), _by_extents(1)) for name in ("Reshape", "Expand")},
    **dict.fromkeys(("Unsqueeze", "Squeeze"), ((1,), _reshaped)),
    **{name: ((1,), _at_axis(1, -1)) for name in ("OneHot", "TopK")},
    **dict.fromkeys(("CumSum", "CumProd"), ((1,), _cumulative)),
    **{name: ((0,), lambda b: _given(b, 0, _static(b, b.output(0))[0])) for name in WINDOWS},
    **{f"Reduce{name}": ((1,), _reduced) for name in REDUCTIONS},
    "ConstantOfShape": ((0,), _by_extents(0)),
    "MaxUnpool": ((2,), _by_extents(2)),
    "Tile": ((1,), _tile),
    "Split": ((1,), _split),
    "AffineGrid": ((1,), _affine_grid),
    "Range": ((0, 1, 2), _range),
    "CenterCropPad": ((1,), _at_axes(1)),
    "Resize": ((1, 2, 3), _resize),
    "Upsample": ((1,), _resize),
    "Slice": ((1, 2, 3, 4), _slice),
    "Pad": ((1, 3), _pad),
}

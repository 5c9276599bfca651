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
from packager.frontends.onnx.graph.stated.positions import NotStatedError, Shape, padded, sliced, static

SIZES = "packager_sizes"  # attribute with the stated extents of the result, for ``ops.nn.resize``
# Values that are computed from shapes, or have sizes that data give.
NOT_FOLLOWED = ("Shape", "Size", "NonZero", "Compress", "Unique", "NonMaxSuppression", "If", "Loop", "Scan")
UNARY = ("Identity", "Cast", "CastLike", "Sqrt", "Log", "Exp", "Abs", "Neg", "Reciprocal", "Relu", "Sigmoid", "Tanh")
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")  # of a scalar, the other operand has all extents
# More ways to reduce axes to the stated extents are not tried.
MAX_WAYS = 6


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
        except (NotYetError, NotStatedError):
            return None
        for name, result in zip(node.output, results, strict=False):
            if name and result:
                body.nodes.append(helper.make_node("Identity", [result], [name], name=title_of(node)))
        return body.nodes

    return rewrite_nodes(graph, rewritten)


def _hand_back(graph: onnx.GraphProto, inferred: Inferred) -> None:
    """Add the extents of values that operators on elements take, where those of their results are stated."""
    for node in reversed(graph.node):
        known = inferred.extents.get(node.output[0]) if is_standard(node, *UNARY, *BINARY) else None
        if known is None or None in known:
            continue
        operands = node.input[:1] if node.op_type in UNARY else node.input
        others = [name for name in operands if inferred.extents.get(name) != ()]
        if len(others) == 1:
            inferred.extents[others[0]] = known


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


def _given(b: Body, place: int, values: Sequence[int] | int) -> list[str]:
    """Write the node with an input that is constant."""
    operands = list(b.node.input)
    operands[place] = b.array(values, np.int64)
    return b.several(b.node.op_type, operands, len(b.node.output), **b.attributes)


def _by_extents(place: int) -> _Rule:
    return lambda b: _given(b, place, static(b, b.output(0)))


def _reshaped(b: Body) -> list[str]:
    return [b("Reshape", b.input(0), b.integers(*static(b, b.output(0))))]


def _tile(b: Body) -> list[str]:
    old, new = static(b, b.input(0)), static(b, b.output(0))
    if 0 in old:
        raise NotStatedError
    return _given(b, 1, [n // o for n, o in zip(new, old, strict=True)])


def _at_axis(place: int, default: int) -> _Rule:
    """The extent of the result along the node's axis."""

    def rule(b: Body) -> list[str]:
        extents = static(b, b.output(0))
        size = extents[b.flag("axis", default) % len(extents)]
        return _given(b, place, size if b.node.op_type == "OneHot" else [size])

    return rule


def _split(b: Body) -> list[str]:
    axis = b.flag("axis")
    return _given(b, 1, [static(b, name)[axis] for name in b.node.output])


def _at_axes(place: int) -> _Rule:
    """The extents of the result along the node's axes."""

    def rule(b: Body) -> list[str]:
        extents = static(b, b.output(0))
        return _given(b, place, [extents[axis] for axis in b.flag("axes", range(len(extents)))])

    return rule


def _resize(b: Body) -> list[str]:
    """Sizes are those of the result; scales and regions are left to the run, which needs to know the sizes."""
    if SIZES in b.attributes:
        raise NotStatedError
    extents = static(b, b.output(0))
    operands = list(b.node.input)
    if len(operands) > 3 and operands[3] and b.flag("keep_aspect_ratio_policy", "stretch") == "stretch":
        operands[3] = b.integers(*(extents[axis] for axis in b.flag("axes", range(len(extents)))))
    return b.several(b.node.op_type, operands, 1, **b.attributes, **{SIZES: list(extents)})


def _affine_grid(b: Body) -> list[str]:
    batch, *extents, _ = static(b, b.output(0))
    return _given(b, 1, [batch, 1, *extents])  # the number of channels does not count


def _range(b: Body) -> list[str]:
    (count,) = static(b, b.output(0))
    kind = b.type_of(b.input(0))
    steps = b("Cast", b.integers(*range(count)), to=kind)
    return [b("Add", b("Mul", steps, b.input(2)), b.input(0))]


def _cumulative(b: Body) -> list[str]:
    """Compute along each axis, and choose."""
    rank = len(b.extents(b.input(0)))
    axis = b("Mod", b("Cast", b.input(1), to=TensorProto.INT64), b.array(rank, np.int64))
    ways = [b(b.node.op_type, b.input(0), b.array(number, np.int64), **b.attributes) for number in range(rank)]
    return [_chosen(b, ways, axis, range(rank))]


def _dft(b: Body) -> list[str]:
    """Transform along each axis that gives the stated extents, and choose."""
    old, new = static(b, b.input(0)), static(b, b.output(0))
    one_sided, rank = bool(b.flag("onesided")), len(old)
    if b.input(1):
        raise NotStatedError
    forward = one_sided and not b.flag("inverse")

    def length(axis: int) -> int:
        if forward:
            return old[axis] // 2 + 1
        return 2 * (old[axis] - 1) if one_sided else old[axis]

    fitting = [axis for axis in range(rank - 1) if (*old[:axis], length(axis), *old[axis + 1 : -1]) == new[:-1]]
    if not fitting:
        raise NotStatedError
    axes = b("Mod", b("Cast", b.input(2), to=TensorProto.INT64), b.array(rank, np.int64))
    ways = [b("DFT", b.input(0), "", b.array(axis, np.int64), **b.attributes) for axis in fitting]
    return [_chosen(b, ways, axes, fitting)]


def _chosen(b: Body, ways: Sequence[str], code: str, codes: Sequence[int]) -> str:
    """Return the way whose code is the one that a run computes; the last one if there is none."""
    result = ways[-1]
    for way, number in zip(ways[:-1], codes[:-1], strict=True):
        result = b("Where", b("Equal", code, b.array(number, np.int64)), way, result)
    return result


def _reduced(b: Body) -> list[str]:
    """Reduce the axes that give the stated extents; where several do, choose by the axes of the run."""
    old, new, keeps = static(b, b.input(0)), static(b, b.output(0)), b.flag("keepdims", 1)
    (count,) = static(b, b.input(1))
    rank = len(old)
    if count == 0:
        raise NotStatedError

    def extents(axes: Sequence[int]) -> Shape:
        kept = [1 if axis in axes else extent for axis, extent in enumerate(old)]
        return tuple(extent for axis, extent in enumerate(kept) if keeps or axis not in axes)

    fitting = [axes for axes in itertools.combinations(range(rank), count) if extents(axes) == new]
    if not 0 < len(fitting) <= MAX_WAYS:
        raise NotStatedError
    ways = [b(b.node.op_type, b.input(0), b.integers(*axes), **b.attributes) for axes in fitting]
    if len(ways) == 1:
        return ways
    places = b("Mod", b.input(1), b.array(rank, np.int64))
    flags = b("Gather", b.integers(*(1 << axis for axis in range(rank))), places)
    code = b("ReduceSum", flags, b.integers(0), keepdims=0)
    return [_chosen(b, ways, code, [sum(1 << axis for axis in axes) for axes in fitting])]


# Writes a node anew, and returns its outputs. Raises NotStatedError, and NotYetError.
_Rule = Callable[[Body], list[str]]
WINDOWS = ("HannWindow", "HammingWindow", "BlackmanWindow")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
# The inputs that are parameters, and the rule.
RULES: Mapping[str, tuple[tuple[int, ...], _Rule]] = {
    **{name: ((1,), _by_extents(1)) for name in ("Reshape", "Expand")},
    **dict.fromkeys(("Unsqueeze", "Squeeze"), ((1,), _reshaped)),
    **{name: ((1,), _at_axis(1, -1)) for name in ("OneHot", "TopK")},
    **dict.fromkeys(("CumSum", "CumProd"), ((1,), _cumulative)),
    **{name: ((0,), lambda b: _given(b, 0, static(b, b.output(0))[0])) for name in WINDOWS},
    **{f"Reduce{name}": ((1,), _reduced) for name in REDUCTIONS},
    "DFT": ((2,), _dft),
    "ConstantOfShape": ((0,), _by_extents(0)),
    "MaxUnpool": ((2,), _by_extents(2)),
    "Tile": ((1,), _tile),
    "Split": ((1,), _split),
    "AffineGrid": ((1,), _affine_grid),
    "Range": ((0, 1, 2), _range),
    "CenterCropPad": ((1,), _at_axes(1)),
    "Resize": ((1, 2, 3), _resize),
    "Upsample": ((1,), _resize),
    "Slice": ((1, 2, 3, 4), sliced),
    "Pad": ((1, 3), padded),
}

"""Computes in half precision what is one operator of float32 between halves, and adds biases in convolutions.

A sum, difference, product or quotient of halves is the same rounded from float32 as computed in half: 24 bits are at
least 2 * 11 + 2 (S. A. Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30, 1995).
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from packager.backends.tensorrt.rewrite.graph import FLOAT, HALF, Graph

EXACT = frozenset(("Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Relu", "Sub"))
# After each other these differ by rounding; quotients only by a constant, since a small divisor would be zero.
ROUNDED = EXACT | {"Clip", "Erf", "HardSigmoid", "HardSwish", "LeakyRelu", "Sigmoid", "Tanh"}
SMALLEST = 2.0**-14  # normal half


def narrow(graph: Graph, *, rounds: bool) -> None:
    """Compute in half what gives equal results: operators from casts of halves to casts to halves.

    With ``rounds`` also several operators after each other, and with constants that halves do not have.
    """
    producers, readers = graph.producers(), graph.readers()
    chosen = _narrowed(graph, producers, readers, rounds=rounds)
    replaced: dict[str, str] = {}  # what a cast to half is instead
    nodes = []
    for node in graph.nodes:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        (first, *_) = node.output
        source = producers.get(node.input[0]) if node.input else None
        if first in chosen:
            operands = [_half(graph, name, producers, chosen) for name in node.input]
            changed.input[:] = [replaced.get(name, name) for name in operands]
            changed.output[:] = [graph.recomputed(first, HALF, graph.shapes.get(first))]
        else:
            changed.input[:] = [replaced.get(name, name) for name in node.input]
            if node.input and node.input[0] in chosen:
                _replace(graph, changed, node.input[0], replaced)
            elif _is_cast(node, HALF) and source is not None and _is_cast(source, FLOAT) and _is_half(graph, source):
                _replace(graph, changed, replaced.get(source.input[0], source.input[0]), replaced)
        nodes.append(changed)
    graph.nodes = nodes
    graph.prune()


def _replace(graph: Graph, cast: onnx.NodeProto, value: str, replaced: dict[str, str]) -> None:
    """Read a value instead of a cast; what an output is has its name."""
    if cast.output[0] in graph.outputs:
        cast.op_type = "Identity"
        del cast.attribute[:]
        cast.input[:] = [value]
    else:
        replaced[cast.output[0]] = value


def _narrowed(
    graph: Graph, producers: dict[str, onnx.NodeProto], readers: dict[str, list[onnx.NodeProto]], *, rounds: bool
) -> set[str]:
    """Return the results of the operators that are computed in half."""
    kinds = ROUNDED if rounds else EXACT
    chosen = {node.output[0] for node in graph.nodes if node.op_type in kinds and graph.types[node.output[0]] == FLOAT}

    def stays(result: str) -> bool:
        beside = chosen if rounds else set()
        node, following = producers[result], readers.get(result, [])
        given = [name for name in node.input if name]
        return (
            result not in graph.outputs
            and bool(following)
            and all(one.output[0] in beside or _is_cast(one, HALF) for one in following)
            and all(name in beside or _is_given(graph, node, name, producers, rounds=rounds) for name in given)
            and not all(map(graph.is_constant, given))
            and not (rounds and node.op_type == "Div" and not graph.is_constant(node.input[1]))
        )

    while refused := {result for result in chosen if not stays(result)}:
        chosen -= refused
    return chosen


def _is_given(
    graph: Graph, node: onnx.NodeProto, name: str, producers: dict[str, onnx.NodeProto], *, rounds: bool
) -> bool:
    """Whether a node's operand is a half that was cast, or a constant that is one, or may be rounded to one."""
    source = producers.get(name)
    if source is not None:
        return _is_cast(source, FLOAT) and _is_half(graph, source)
    if not graph.is_constant(name):
        return False
    value = graph.value(name)
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    if not rounds or not np.isfinite(half).all():
        return bool(np.array_equal(half.astype(np.float32), value))
    factors = node.op_type in ("Div", "Mul")
    return not factors or bool(((value == 0) | (np.abs(value) >= SMALLEST)).all())


def _half(graph: Graph, name: str, producers: dict[str, onnx.NodeProto], chosen: set[str]) -> str:
    """Return an operand in half."""
    if not name or name in chosen:
        return name
    return graph.formed(name, ("cast", "float16")) if graph.is_constant(name) else producers[name].input[0]


def _is_cast(node: onnx.NodeProto, to: int) -> bool:
    return node.op_type == "Cast" and bool(helper.get_node_attr_value(node, "to") == to)


def _is_half(graph: Graph, cast: onnx.NodeProto) -> bool:
    return bool(graph.types[cast.input[0]] == HALF)


def add_biases(graph: Graph) -> None:
    """Make what is added to each channel of a convolution its bias."""
    readers = graph.readers()
    convolutions = {
        node.output[0]: node
        for node in graph.nodes
        if node.op_type in ("Conv", "ConvTranspose")
        and len(node.input) == 2
        and node.output[0] not in graph.outputs
        and len(readers.get(node.output[0], ())) == 1
    }
    nodes = []
    for node in graph.nodes:
        match = _bias(graph, node, convolutions) if node.op_type == "Add" else None
        if match is None:
            nodes.append(node)
            continue
        convolution, bias = match
        convolution.input.append(bias)
        convolution.output[:] = node.output
    graph.nodes = nodes


def _bias(
    graph: Graph, node: onnx.NodeProto, convolutions: dict[str, onnx.NodeProto]
) -> tuple[onnx.NodeProto, str] | None:
    for given, added in (tuple(node.input), tuple(node.input)[::-1]):
        convolution = convolutions.get(given)
        if convolution is None or not graph.is_constant(added) or graph.types[added] != graph.types[given]:
            continue
        shape, whole = graph.shapes[added], graph.shapes.get(given, ())
        padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
        if len(whole) > 2 and padded == (1, whole[1]) + (1,) * (len(whole) - 2):
            return convolution, graph.formed(added, ("reshape", (whole[1],)))
    return None

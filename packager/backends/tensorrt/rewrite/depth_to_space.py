"""Finds channels that move into space: a reshape, a transpose and a reshape, channels last, are ``DepthToSpace``.

As which transposed convolutions are computed if `cutlass` is beside engines (``transforms.layout.transposed_conv``).
Channels are first there, so that transposes around convolutions still meet.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from packager.backends.tensorrt.rewrite.graph import Graph

_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # from channels last, and to it
_INTERLEAVING = [0, 1, 3, 2, 4, 5]  # of [n, h, w, a, a, c]


def find_depth_to_space(graph: Graph) -> None:
    """Rewrite a graph, whose values keep their names."""
    producers, readers = graph.producers(), graph.readers()
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        found = _interleaved(graph, node, producers, readers)
        nodes += [node] if found is None else _written(graph, node, *found)
    graph.nodes = nodes
    graph.prune()


def _interleaved(graph: Graph, last: onnx.NodeProto, producers: Any, readers: Any) -> tuple[str, int] | None:
    """Return the value whose channels ``last`` has in space, and the side of the blocks; None for anything else."""
    chain = [last]
    for kind in ("Reshape", "Transpose", "Reshape"):
        if chain[-1].op_type != kind:
            return None
        operand = chain[-1].input[0]
        if len(chain) < 3:
            if operand not in producers or operand in graph.outputs or len(readers[operand]) > 1:
                return None
            chain.append(producers[operand])
    _, transpose, first = chain
    source, blocks, result = (graph.shapes.get(name, ()) for name in (first.input[0], first.output[0], last.output[0]))
    if list(helper.get_node_attr_value(transpose, "perm")) != _INTERLEAVING or len(blocks) != len(_INTERLEAVING):
        return None
    n, height, width, side, other, channels = blocks
    if side != other or not all(isinstance(one, int) and one > 0 for one in (height, width, side, channels)):
        return None
    is_split = tuple(source) == (n, height, width, side * side * channels)
    is_joined = tuple(result) == (n, height * side, width * side, channels)
    return (first.input[0], side) if is_split and is_joined else None


def _written(graph: Graph, node: onnx.NodeProto, source: str, side: int) -> list[onnx.NodeProto]:
    (name,) = node.output
    n, height, width, channels = graph.shapes[name]
    planes, deep = graph.unused(f"{name}.planes"), graph.unused(f"{name}.deep")
    for made, shape in (
        (deep, (n, channels * side * side, height // side, width // side)),
        (planes, (n, channels, height, width)),
    ):
        graph.types[made], graph.shapes[made] = graph.types[name], shape
    return [
        helper.make_node("Transpose", [source], [deep], perm=_FIRST),
        helper.make_node("DepthToSpace", [deep], [planes], blocksize=side, mode="DCR"),
        helper.make_node("Transpose", [planes], [name], perm=_LAST),
    ]

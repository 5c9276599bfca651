"""Finds the nodes of a graph that draw random numbers, and says what the numbers of each are computed from.

A bundle has no state between runs that is not declared, so its random numbers are a function of an input, the seed of
the run, and of constants that tell nodes apart (``ops.random_numbers``). The nodes are numbered in the file, before
loops are unrolled: the number is that of a node's stream, and ``connect_seeds`` numbers its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from packager.bundle.origin import RandomNode
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.nodes import (
    attributes_of,
    inner_graphs,
    is_standard,
    replace_all,
    rewrite_nodes,
    title_of,
)

# Operator -> its number of inputs; the seed becomes the one after them.
RANDOM = {
    **{"RandomNormal": 0, "RandomUniform": 0, "RandomNormalLike": 1, "RandomUniformLike": 1},
    **{"Bernoulli": 1, "Multinomial": 1, "Dropout": 3},
}
STREAM, COPY = "packager_stream", "packager_copy"  # attributes that the passes add
SEED = "random_seed"
# Operator that ``connect_seeds`` inserts: a seed and numbers of iterations to a key.
FOLD_IN = "FoldIn"


@dataclass(frozen=True)
class Streams:
    """The nodes of the file that may draw random numbers, by the number of their stream, and the input for the seed of
    a run, if one is needed."""

    titles: tuple[str, ...]
    seed: str | None


def number_streams(graph: onnx.GraphProto) -> Streams:
    """Number the nodes that may draw random numbers, in place. If one has no seed of its own, add an input for the seed
    of a run, an int64 scalar."""
    nodes = list(_nodes_of(graph))
    drawing = [node for node in nodes if _may_draw(node)]
    for stream, node in enumerate(drawing):
        node.attribute.append(helper.make_attribute(STREAM, stream))
    titles = tuple(map(title_of, drawing))
    if all("seed" in attributes_of(node) for node in drawing):
        return Streams(titles, None)
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    taken.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    name = SEED
    while name in taken:
        name += "_"
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
    return Streams(titles, name)


def connect_seeds(graph: onnx.GraphProto, constants: Constants, streams: Streams) -> tuple[RandomNode, ...]:
    """Give each node that is left the seed of the run as an input, unless it has one of its own, and number the copies
    of a node. The input is removed if no node needs it. Return the nodes for the manifest.

    In a loop that is left the seed is a key of the iteration, which ``FoldIn`` computes.
    """
    seed = streams.seed or ""
    is_input = any(value.name == seed for value in graph.input)
    connected = _Connected(streams, constants, seed, is_input)
    connected.connect(graph, ())
    if is_input and not connected.needed:
        replace_all(graph.input, [value for value in graph.input if value.name != seed])
    if connected.needed and not is_input:  # frozen, and dropped for it was not used yet
        replace_all(graph.initializer, [t for t in graph.initializer if t.name != seed])
        graph.initializer.append(constants.tensors[seed])
    return tuple(connected.found.values())


class _Connected:
    """The nodes that got their seeds so far, and whether one of them needs the seed of the run."""

    def __init__(self, streams: Streams, constants: Constants, seed: str, is_input: bool) -> None:
        self.streams, self.constants, self.seed, self.is_input = streams, constants, seed, is_input
        self.copies: Counter[int] = Counter()
        self.found: dict[str, RandomNode] = {}
        self.needed = False

    def connect(self, graph: onnx.GraphProto, numbers: tuple[str, ...]) -> None:
        """Connect the nodes of a graph, which is run once for all ``numbers`` of iterations of the loops around it."""

        def connected(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    is_loop = is_standard(node, "Loop")
                    self.connect(attribute.g, (*numbers, attribute.g.input[0].name) if is_loop else numbers)
            if STREAM not in attributes_of(node) or not _draws(node, self.constants):
                return None
            return self._nodes(node, numbers)

        rewrite_nodes(graph, connected)

    def _nodes(self, node: onnx.NodeProto, numbers: tuple[str, ...]) -> list[onnx.NodeProto]:
        """Return a node with its seed and the number of its copy, after what computes a key of the iteration."""
        attributes = attributes_of(node)
        stream, own = attributes[STREAM], "seed" in attributes
        node.attribute.append(helper.make_attribute(COPY, self.copies[stream]))
        self.copies[stream] += 1
        nodes, key = [node], "" if own else self.seed
        if numbers:
            key = f"{title_of(node)}.{node.output[0]}.key"
            given = {"seed": attributes["seed"]} if own else {}
            nodes.insert(0, helper.make_node(FOLD_IN, ["" if own else self.seed, *numbers], [key], key, **given))
        node.input.extend([*[""] * (RANDOM[node.op_type] - len(node.input)), key])
        self.needed |= not own
        title = self.streams.titles[stream]
        if title not in self.found or self.found[title].seed is None:  # names may be given twice
            self.found[title] = RandomNode(title, node.op_type, self.seed if self.is_input and not own else None)
        return nodes


def _nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from inner.node


def _may_draw(node: onnx.NodeProto) -> bool:
    if not is_standard(node, *RANDOM):
        return False
    return node.op_type != "Dropout" or bool(len(node.input) > 2 and node.input[2])


def _draws(node: onnx.NodeProto, constants: Constants) -> bool:
    """Tell whether a node draws numbers: a Dropout does unless its training mode is known to be false."""
    if node.op_type != "Dropout" or not _may_draw(node):
        return _may_draw(node)
    return node.input[2] not in constants or bool(np.any(constants.array(node.input[2])))

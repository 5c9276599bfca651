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
from packager.errors import ModelError
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.nodes import attributes_of, inner_graphs, is_standard, replace_all, title_of

# Operator -> its number of inputs; the seed becomes the one after them.
RANDOM = {
    **{"RandomNormal": 0, "RandomUniform": 0, "RandomNormalLike": 1, "RandomUniformLike": 1},
    **{"Bernoulli": 1, "Multinomial": 1, "Dropout": 3},
}
STREAM, COPY = "packager_stream", "packager_copy"  # attributes that the passes add
SEED = "random_seed"


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

    Raises ModelError for a node in a loop that is left: its steps would draw the same numbers.
    """
    copies: Counter[int] = Counter()
    found: dict[str, RandomNode] = {}
    seed = streams.seed or ""
    is_input = any(value.name == seed for value in graph.input)
    needed = False
    for node in graph.node:
        for part in (part for inner in inner_graphs(node) for part in inner.node):
            if STREAM in attributes_of(part) and _draws(part, constants):
                raise ModelError(
                    f"node {streams.titles[attributes_of(part)[STREAM]]!r} of operator {part.op_type} draws random "
                    f"numbers in node {title_of(node)!r} of operator {node.op_type}, which is not unrolled",
                    hint="give the loop a constant number of steps, or cut the model there",
                )
        attributes = attributes_of(node)
        if STREAM not in attributes or not _draws(node, constants):
            continue
        stream = attributes[STREAM]
        node.attribute.append(helper.make_attribute(COPY, copies[stream]))
        copies[stream] += 1
        own = "seed" in attributes
        node.input.extend([*[""] * (RANDOM[node.op_type] - len(node.input)), "" if own else seed])
        needed |= not own
        title = streams.titles[stream]
        if title not in found or found[title].seed is None:  # names may be given twice
            found[title] = RandomNode(title, node.op_type, seed if is_input and not own else None)
    if is_input and not needed:
        replace_all(graph.input, [value for value in graph.input if value.name != seed])
    if needed and not is_input:  # frozen, and dropped for it was not used yet
        replace_all(graph.initializer, [t for t in graph.initializer if t.name != seed])
        graph.initializer.append(constants.tensors[seed])
    return tuple(found.values())


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

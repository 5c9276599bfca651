"""Replaces detours of a short vector through a matrix by one Gather: shape arithmetic knows vectors only.

``torch.nn.functional.pad`` with extents that are computed is exported so: pairs of before and after are reshaped to
a matrix, reversed, transposed and reshaped back.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx
from onnx import helper

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import evaluator, is_standard, rewrite_nodes

MOVES = ("Reshape", "Slice", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Identity")
INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
# The longest vector, and the most nodes of a detour.
MAX_LENGTH, MAX_NODES = 64, 8


def gather_moves(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Rewrite the detours; return whether there were any."""
    graph = model.graph
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {value.name for value in graph.output}
    gathers: dict[str, onnx.NodeProto] = {}  # by the result of the last node of a detour

    for node in graph.node:
        extents = inferred.extents.get(node.input[0], ()) if is_standard(node, "Reshape") else ()
        if len(extents) != 1 or node.input[0] in constants or inferred.types.get(node.input[0]) not in INTEGERS:
            continue
        (length,) = extents
        moves = [node]
        while len(moves) < MAX_NODES and len(inferred.extents.get(moves[-1].output[0], (0,))) != 1:
            following = readers[moves[-1].output[0]]
            if len(following) != 1 or moves[-1].output[0] in outputs or not is_standard(following[0], *MOVES):
                break
            moves.append(following[0])
        last = moves[-1].output[0]
        if length is None or length > MAX_LENGTH or len(moves) < 2 or len(inferred.extents.get(last, ())) != 1:
            continue
        places = _places(model, moves, length, constants)
        if places is not None:
            name = f"{last}.places"
            constants.add(name, places, None)
            gathers[last] = helper.make_node("Gather", [node.input[0], name], [last], name=moves[-1].name, axis=0)

    return rewrite_nodes(graph, lambda _, node: [gathers[node.output[0]]] if node.output[0] in gathers else None)


def _places(model: onnx.ModelProto, moves: list[onnx.NodeProto], length: int, constants: Constants) -> Array | None:
    """Return which element of the vector each element of the result is; None if a node is no plain move."""
    feeds = {moves[0].input[0]: np.arange(length)}
    made = {node.output[0] for node in moves}
    for node in moves:
        for name in node.input:
            if name in constants:
                feeds[name] = constants.array(name)
            elif name and name not in made and name not in feeds:
                return None
    try:
        (found,) = evaluator(model, moves, feeds, [moves[-1].output[0]]).run(None, feeds)
    except Exception:  # onnx's reference raises errors of many types: the importer decides
        return None
    return np.asarray(found, np.int64)

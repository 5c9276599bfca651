"""Replace empty tensors by constants, so that no node computes or uses them.

Constant folding then evaluates their consumers, such as a reduction over an empty axis.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import is_standard, replace_all

SCATTERS = ("ScatterND", "ScatterElements", "Scatter")


def replace_empty(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace values of ``graph`` with a static shape and a 0 extent by constants; return whether there were any."""
    outputs = {value.name for value in graph.output}
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if not is_standard(node):
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            if name not in constants and _is_empty(name, inferred):
                node.input[index] = _constant(name, inferred, constants)
                changed = True
        if node.op_type in SCATTERS and not all(constants.array(i).size for i in node.input[1:2] if i in constants):
            node.op_type = "Identity"  # no element is written
            del node.input[1:], node.attribute[:]
            changed = True
        made = [name for name in node.output if name in outputs and _is_empty(name, inferred)]
        if not made or (node.op_type == "Identity" and node.input[0] in constants):
            nodes.append(node)
            continue
        changed = True
        for index, name in enumerate(node.output):
            if name in made:
                source = _constant(name, inferred, constants)
                nodes.append(onnx.helper.make_node("Identity", [source], [name], name=node.name))
                node.output[index] = f"{name}.unused"
        if len(made) < sum(map(bool, node.output)):
            nodes.append(node)
    replace_all(graph.node, nodes)
    return changed


def _is_empty(name: str, inferred: Inferred) -> bool:
    extents = inferred.extents.get(name, ())
    known = inferred.types.get(name, 0) not in (TensorProto.UNDEFINED, TensorProto.STRING)
    return known and None not in extents and math.prod(extents) == 0  # type: ignore[arg-type]


def _constant(name: str, inferred: Inferred, constants: Constants) -> str:
    known = f"{name}.empty"
    if known not in constants:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(inferred.types[name])
        constants.add(known, np.empty([extent or 0 for extent in inferred.extents[name]], dtype), None)
    return known

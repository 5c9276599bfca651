"""Compute a Range of floats over extents as a Range of integers, whose length is an expression over the dims.

torch.arange(height, dtype=torch.float32) is exported as a Range whose limit is an extent cast to float.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import NodeWriter, is_standard, rewrite_nodes

INTEGERS = (TensorProto.INT32, TensorProto.INT64)
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
# float32 has all integers up to here.
MAX_EXACT = 2**24


def integer_ranges(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Rewrite each Range of whole floats, of which at least one is cast from an integer; return whether any was."""
    casts = {node.output[0]: node.input[0] for node in graph.node if is_standard(node, "Cast")}
    writer = NodeWriter(graph, constants.tensors)

    def rewritten(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "Range") or inferred.types.get(node.output[0]) not in FLOATS:
            return None
        sources = [casts.get(name, "") for name in node.input]
        cast = [inferred.types.get(source) in INTEGERS for source in sources]
        fixed = [name in constants and _is_whole(constants, name) for name in node.input]
        if not any(cast) or not all(one or other for one, other in zip(cast, fixed, strict=True)):
            return None
        nodes, operands = [], []
        for name, source, is_cast in zip(node.input, sources, cast, strict=True):
            operands.append(writer.fresh(f"{node.output[0]}.{name}.integer"))
            nodes.append(_cast(source if is_cast else name, operands[-1], TensorProto.INT64, node.name))
        numbers = writer.fresh(f"{node.output[0]}.integer")
        nodes.append(onnx.helper.make_node("Range", operands, [numbers], name=node.name))
        return [*nodes, _cast(numbers, node.output[0], inferred.types[node.output[0]], node.name)]

    return rewrite_nodes(graph, rewritten)


def _is_whole(constants: Constants, name: str) -> bool:
    array = constants.array(name)
    return array.size == 1 and float(array.item()).is_integer() and abs(float(array.item())) <= MAX_EXACT


def _cast(source: str, result: str, to: int, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [result], name=name, to=to)

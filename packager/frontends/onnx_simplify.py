"""Simplify an ONNX graph with numpy before it is imported: fold what is constant, and batch norm into conv.

TVM folds too, but compiles a function for each constant operator: most of a build's time on a conv net.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

# Operators whose result is not a function of their inputs alone, or that hold sub-graphs.
NOT_FOLDABLE = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"),
    *("If", "Loop", "Scan", "SequenceMap"),
}
# Initialisers above this size, in bytes, are no shapes or axes.
LARGE_BYTES = 4096
# A fold must not blow up the file: a constant-of-shape of gigabytes stays an operator.
MAX_FOLDED_BYTES = 1 << 28

Array = NDArray[Any]


@dataclass(frozen=True)
class Inferred:
    """What shape inference finds: the shapes of values whose shape is static, and element types, by name."""

    shapes: dict[str, tuple[int, ...]]
    types: dict[str, int]


def simplify(model: onnx.ModelProto) -> Inferred:
    """Fold constants and batch norms of ``model`` in place; the graph computes the same values.

    Returns what is known of the values that were there before.
    """
    inferred = _infer(model)
    _fold_constants(model, inferred.shapes)
    _fold_batch_norms(model.graph)
    _drop_unused(model.graph)
    return inferred


def _infer(model: onnx.ModelProto) -> Inferred:
    # Inference needs the shapes of large initialisers, not their data, and protobuf cannot pass over 2 GiB.
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = model.graph
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.input.extend(graph.input)
    bare.graph.output.extend(graph.output)
    bare.graph.value_info.extend(graph.value_info)
    for tensor in graph.initializer:
        if len(tensor.raw_data) > LARGE_BYTES:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            bare.graph.initializer.append(tensor)
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        inferred = bare.graph  # an optimisation only: the importer infers by itself and reports what is wrong
    shapes = {}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in [*inferred.value_info, *inferred.input, *inferred.output]:
        tensor_type = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        types[value.name] = tensor_type.elem_type
        if tensor_type.HasField("shape"):
            extents = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor_type.shape.dim]
            if all(extent >= 0 for extent in extents):
                shapes[value.name] = tuple(extents)
    return Inferred(shapes, types)


def _fold_constants(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    arrays: dict[str, Array] = {}

    def array_of(name: str) -> Array:
        if name not in arrays:
            arrays[name] = numpy_helper.to_array(known[name])
        return arrays[name]

    outputs = {value.name for value in graph.output}
    remaining = []
    for node in graph.node:
        values: list[Array] | None = None
        if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
            values = [np.array(shapes[node.input[0]], dtype=np.int64)]
        elif (
            node.op_type not in NOT_FOLDABLE
            and node.domain in ("", "ai.onnx")
            and all(not name or name in known for name in node.input)
            and not outputs & set(node.output)
        ):
            values = _evaluate(model, node, {name: array_of(name) for name in node.input if name})
        if values is None:
            remaining.append(node)
            continue
        for name, value in zip(node.output, values, strict=False):
            if name:
                known[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
                arrays[name] = value
                graph.initializer.append(known[name])
    del graph.node[:]
    graph.node.extend(remaining)


def _evaluate(model: onnx.ModelProto, node: onnx.NodeProto, feeds: dict[str, Array]) -> list[Array] | None:
    """Return the node's outputs, or None when it cannot or should not be computed here."""
    if node.op_type == "ConstantOfShape" and np.prod(next(iter(feeds.values())), dtype=float) * 8 > MAX_FOLDED_BYTES:
        return None
    graph = onnx.GraphProto(name="fold", node=[node])
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in feeds)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    single = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    try:
        values = ReferenceEvaluator(single).run(None, feeds)
    except Exception:  # whatever the reference cannot compute stays in the graph, for the importer to judge
        return None
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return None
    if sum(value.nbytes for value in values) > MAX_FOLDED_BYTES + sum(feed.nbytes for feed in feeds.values()):
        return None
    return [np.asarray(value) for value in values]


def _fold_batch_norms(graph: onnx.GraphProto) -> None:
    """Rewrite Conv -> BatchNormalization as one Conv: w' = w * s, b' = (b - mean) * s + beta.

    s = gamma / sqrt(variance + epsilon). Source: Ioffe and Szegedy 2015, "Batch Normalization", section 3.1.
    """
    known = {tensor.name: tensor for tensor in graph.initializer}
    producer = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    folded = []
    for norm in graph.node:
        conv = producer.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or uses[conv.output[0]] != 1:
            continue
        names = [*norm.input[1:5], *conv.input[1:]]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
        if not all(name in known for name in names) or attributes.get("training_mode", 0) or len(norm.output) > 1:
            continue
        gamma, beta, mean, variance = (numpy_helper.to_array(known[name]) for name in norm.input[1:5])
        weight = numpy_helper.to_array(known[conv.input[1]])
        bias = numpy_helper.to_array(known[conv.input[2]]) if len(conv.input) > 2 else np.zeros_like(mean)
        scale = gamma / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
        new_weight = (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
        new_bias = ((bias - mean) * scale + beta).astype(weight.dtype)
        names = [_fresh(conv.input[1], known), _fresh(conv.input[2] if len(conv.input) > 2 else norm.input[2], known)]
        for name, array in zip(names, (new_weight, new_bias), strict=True):
            known[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
            graph.initializer.append(known[name])
        del conv.input[1:]
        conv.input.extend(names)
        conv.output[0] = norm.output[0]
        folded.append(norm)
    for norm in folded:
        graph.node.remove(norm)


def _fresh(name: str, taken: dict[str, Any]) -> str:
    """Return a name for the folded form of the initialiser ``name``."""
    candidate = f"{name}.folded"
    while candidate in taken:
        candidate += "_"
    return candidate


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            kept.append(node)
            used.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    initialisers = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initialisers)

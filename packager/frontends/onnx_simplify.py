"""Simplify an ONNX graph with numpy before it is imported: fold what is constant, and batch norm into conv.

TVM folds too, but compiles a function for each constant operator: most of a build's time on a conv net.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from packager.fold.views import take
from packager.frontends.lift import stays_inline
from packager.frontends.onnx_custom import CustomNode, add_types

# Operators whose result is not a function of their inputs alone, that hold sub-graphs, or that are folded later.
NOT_FOLDABLE = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"),
    *("If", "Loop", "Scan", "SequenceMap"),
    # Weights of 8 bits stay such: ``packager.quantized`` computes with them as they are.
    "DequantizeLinear",
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


class Constants:
    """The initialisers of a graph as arrays, and where those that were computed here come from.

    ``sources`` gives for each of these the initialisers of the file that it was computed from; small ones, which are
    part of the code, do not count. An array that only moves elements of its source is a view of it.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.arrays: dict[str, Array] = {}
        self.sources: dict[str, tuple[str, ...]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def array(self, name: str) -> Array:
        """Return the value of an initialiser."""
        if name not in self.arrays:
            self.arrays[name] = numpy_helper.to_array(self.tensors[name])
        return self.arrays[name]

    def add(self, name: str, array: Array, inputs: Iterable[str] | None) -> None:
        """Add an initialiser that was computed from ``inputs``; None: it stands in the file, as a Constant node."""
        self.arrays[name] = array
        self.tensors[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.graph.initializer.append(self.tensors[name])
        if inputs is not None:
            self.sources[name] = tuple(dict.fromkeys(source for i in inputs for source in self._sources_of(i)))

    def _sources_of(self, name: str) -> tuple[str, ...]:
        return self.sources.get(name, () if stays_inline(self.array(name)) else (name,))


def simplify(model: onnx.ModelProto, custom: Mapping[str, CustomNode]) -> tuple[Inferred, Constants]:
    """Fold constants and batch norms of ``model`` in place; the graph computes the same values.

    Returns what is known of the values that were there before, and the constants.
    """
    inferred = _infer(model, custom)
    constants = Constants(model.graph)
    _fold_constants(model, inferred.shapes, constants)
    _fold_batch_norms(model.graph, constants)
    _add_pairwise(model.graph)
    _drop_unused(model.graph)
    return inferred, constants


def _infer(model: onnx.ModelProto, custom: Mapping[str, CustomNode]) -> Inferred:
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
        while custom and add_types(bare.graph, inferred, custom):  # what comes after them depends on their outputs
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


def _fold_constants(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], constants: Constants) -> None:
    graph = model.graph
    outputs = {value.name for value in graph.output}
    remaining = []
    for node in graph.node:
        values: list[Array] | None = None
        if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
            values = [np.array(shapes[node.input[0]], dtype=np.int64)]
        elif (
            node.op_type not in NOT_FOLDABLE
            and node.domain in ("", "ai.onnx")
            and all(not name or name in constants for name in node.input)
            and not outputs & set(node.output)
        ):
            values = _evaluate(model, node, {name: constants.array(name) for name in node.input if name})
            if values is not None and node.op_type == "Gather":
                values = [_gather(node, constants.array(node.input[0]), constants.array(node.input[1]), values[0])]
        if values is None:
            remaining.append(node)
            continue
        for name, value in zip(node.output, values, strict=False):
            if name:
                inputs = [i for i in node.input if i in constants]
                constants.add(name, value, None if node.op_type == "Constant" else inputs)
    del graph.node[:]
    graph.node.extend(remaining)


def _gather(node: onnx.NodeProto, data: Array, indices: Array, value: Array) -> Array:
    """Return the value of a Gather as a view of its data where it is one, else as it is."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    taken = take(data, indices, axis)
    return value if taken is None else taken


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


def _fold_batch_norms(graph: onnx.GraphProto, constants: Constants) -> None:
    """Rewrite Conv -> BatchNormalization as one Conv: w' = w * s, b' = (b - mean) * s + beta.

    s = gamma / sqrt(variance + epsilon). Source: Ioffe and Szegedy 2015, "Batch Normalization", section 3.1.
    """
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
        if not all(name in constants for name in names) or attributes.get("training_mode", 0) or len(norm.output) > 1:
            continue
        gamma, beta, mean, variance = (constants.array(name) for name in norm.input[1:5])
        weight = constants.array(conv.input[1])
        bias = constants.array(conv.input[2]) if len(conv.input) > 2 else np.zeros_like(mean)
        scale = gamma / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
        new_weight = (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
        new_bias = ((bias - mean) * scale + beta).astype(weight.dtype)
        weight_name = _fresh(conv.input[1], constants)
        constants.add(weight_name, new_weight, [conv.input[1], norm.input[1], norm.input[4]])
        bias_name = _fresh(conv.input[2] if len(conv.input) > 2 else norm.input[2], constants)
        constants.add(bias_name, new_bias, [*conv.input[2:], *norm.input[1:5]])
        del conv.input[1:]
        conv.input.extend([weight_name, bias_name])
        conv.output[0] = norm.output[0]
        folded.append(norm)
    for norm in folded:
        graph.node.remove(norm)


def _add_pairwise(graph: onnx.GraphProto) -> None:
    """Rewrite Sum as a chain of Add, which fuses with what is around it: TVM would stack the terms and reduce them."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    rewritten: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Sum" or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            rewritten.append(node)
            continue
        total = node.input[0]
        for index, term in enumerate(node.input[1:], 2):
            name = node.output[0] if index == len(node.input) else f"{node.output[0]}.{index}"
            while name in taken and name != node.output[0]:
                name += "_"
            rewritten.append(onnx.helper.make_node("Add", [total, term], [name], name=node.name))
            total = name
    del graph.node[:]
    graph.node.extend(rewritten)


def _fresh(name: str, taken: Constants) -> str:
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

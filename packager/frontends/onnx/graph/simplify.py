"""Simplify an ONNX graph before import: fold constants, and batch norm into conv.

TVM folds constants too, but compiles a function for each operator, most of the build time of a conv net.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx

from packager.bundle.arrays import Array
from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.frontends.onnx.graph.custom_ops import CustomNode
from packager.frontends.onnx.graph.expand_functions import expand_functions, inline_branches
from packager.frontends.onnx.graph.fold_constants import Constants, fold_constants
from packager.frontends.onnx.graph.infer_shapes import Inferred, infer
from packager.frontends.onnx.graph.unroll_loops import unroll_loops
from packager.frontends.onnx.graph.zero_extent import replace_empty

# Operators whose optional outputs are computed only if the node has them.
OPTIONAL_OUTPUTS = ("LayerNormalization", "Attention", "Dropout", "MaxPool")
# The first opset in which Slice takes its bounds as inputs.
FIRST_SLICE = 10
# Known shapes enable inlining and expansion, which make more shapes known. Models need two or three rounds.
MAX_ROUNDS = 16


def simplify(
    model: onnx.ModelProto, custom: Mapping[str, CustomNode], arrays: Mapping[str, Array]
) -> tuple[Inferred, Constants]:
    """Simplify ``model`` in place; the graph computes the same values.

    ``arrays`` holds the initializers whose data are not in the graph. Returns the inferred types and the constants.
    """
    constants = Constants(model.graph, arrays)
    for _ in range(MAX_ROUNDS):
        inferred = infer(model, custom)
        _rewrite(model.graph, inferred, constants)
        _split_to_slices(model, inferred, constants)
        folded = replace_empty(model.graph, inferred, constants) + fold_constants(model, inferred.extents, constants)
        changed = inline_branches(model.graph, constants, inferred) | expand_functions(model, inferred)
        if not (changed | unroll_loops(model, inferred, constants)) and not folded:
            break
    _fold_batch_norms(model.graph, constants)
    _add_pairwise(model.graph)
    _drop_unused(model.graph)
    return inferred, constants


def _rewrite(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> None:
    """Replace nodes by simpler ones, by the known types and values of their inputs."""
    for node in graph.node:
        if node.domain not in STANDARD_DOMAINS:
            continue
        if node.op_type == "CastLike" and inferred.types.get(node.input[1]):
            # CastLike uses only the type of its second input.
            node.op_type = "Cast"
            node.attribute.append(onnx.helper.make_attribute("to", inferred.types[node.input[1]]))
            del node.input[1:]
        elif node.op_type == "Concat":
            _drop_empty(node, inferred)
        elif node.op_type == "OptionalHasElement" and not any(node.input):
            node.op_type = "Constant"  # an empty optional
            del node.input[:]
            value = onnx.numpy_helper.from_array(np.asarray(False))
            node.attribute.append(onnx.helper.make_attribute("value", value))
        elif node.op_type == "Dropout" and len(node.input) > 1 and _is_zero(node.input[1], constants):
            del node.input[1:]  # ratio 0: a no-op in training mode too


def _split_to_slices(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> None:
    """Replace each Split with an empty part by Slices, so that the empty part can be folded."""
    if next((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), 0) < FIRST_SLICE:
        return
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        shapes = [inferred.extents.get(name, ()) for name in node.output]
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if node.op_type != "Split" or node.domain not in STANDARD_DOMAINS or not any(0 in shape for shape in shapes):
            nodes.append(node)
            continue
        sizes = [shape[axis] if shape else None for shape in shapes]
        if None in sizes:
            nodes.append(node)
            continue
        start = 0
        for name, size in zip(node.output, sizes, strict=True):
            operands = []
            for what, value in (("start", start), ("end", start + (size or 0)), ("axis", axis)):
                operands.append(f"{name}.{what}")
                constants.add(operands[-1], np.array([value], np.int64), None)
            nodes.append(onnx.helper.make_node("Slice", [node.input[0], *operands], [name], name=node.name))
            start += size or 0
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _is_zero(name: str, constants: Constants) -> bool:
    return name in constants and not constants.array(name).any()


def _drop_empty(node: onnx.NodeProto, inferred: Inferred) -> None:
    """Remove the empty operands of a Concat, keeping at least one operand."""
    filled = [name for name in node.input if 0 not in inferred.extents.get(name, ())]
    if len(filled) < len(node.input):
        node.input[:] = filled or node.input[:1]
    if len(node.input) == 1:
        node.op_type = "Identity"
        del node.attribute[:]


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
    """Replace Sum by a chain of Add, which fuses with its neighbors: TVM would stack the terms and reduce them."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    rewritten: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Sum" or node.domain not in STANDARD_DOMAINS or len(node.input) < 2:
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
    """Return an unused name for the folded initializer ``name``."""
    candidate = f"{name}.folded"
    while candidate in taken:
        candidate += "_"
    return candidate


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            while node.op_type in OPTIONAL_OUTPUTS and node.output[-1] not in used:
                del node.output[-1:]
            kept.append(node)
            used.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    initializers = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initializers)

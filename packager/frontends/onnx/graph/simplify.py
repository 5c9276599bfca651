"""Simplify an ONNX graph before import: fold constants, drop empty tensors, fold batch norm into conv.

TVM folds constants too, but compiles a function for each operator, most of the build time of a conv net.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.branches import choose_branches
from packager.frontends.onnx.graph.contrib.expand import DOMAIN, expand_contributed
from packager.frontends.onnx.graph.counted_loops import count_loops
from packager.frontends.onnx.graph.custom_ops import CustomNode
from packager.frontends.onnx.graph.expand_functions import expand_functions, inline_branches
from packager.frontends.onnx.graph.fold_constants import Constants, fold_constants
from packager.frontends.onnx.graph.infer_shapes import Inferred, infer
from packager.frontends.onnx.graph.loop_bodies import prepare_loops
from packager.frontends.onnx.graph.nodes import (
    NodeWriter,
    all_inputs,
    attributes_of,
    inner_graphs,
    is_standard,
    replace_all,
    rewrite_nodes,
    standard_version,
)
from packager.frontends.onnx.graph.optimizer_steps import expand_steps
from packager.frontends.onnx.graph.sequences import collect_sequences, lower_sequences
from packager.frontends.onnx.graph.stated.shapes import follow_stated_shapes
from packager.frontends.onnx.graph.unroll_loops import unroll_loops
from packager.frontends.onnx.graph.vector_moves import gather_moves

# Operators whose optional outputs are computed only if the node has them.
OPTIONAL_OUTPUTS = ("LayerNormalization", "Attention", "Dropout", "MaxPool")
# Operators with optional outputs in between.
RECURRENT = ("RNN", "GRU", "LSTM")
SCATTERS = ("ScatterND", "ScatterElements", "Scatter")
# The first opset in which Slice takes its bounds as inputs.
FIRST_SLICE = 10
# Known shapes enable inlining and expansion, which make more shapes known. Models need two or three rounds; those that
# compute the padding of each layer from the shape of the last one need a round for each layer.
MIN_ROUNDS = 16


def simplify(
    model: onnx.ModelProto, custom: Mapping[str, CustomNode], arrays: Mapping[str, Array]
) -> tuple[Inferred, Constants]:
    """Simplify ``model`` in place; the graph computes the same values.

    ``arrays`` holds the initializers whose data are not in the graph. Returns the inferred types and the constants.
    """
    constants = Constants(model.graph, arrays)
    _omit_unread(model.graph)
    for _ in range(max(MIN_ROUNDS, len(model.graph.node))):  # a round that goes on has settled a node at least
        inferred = infer(model, custom)
        bounded = _rewrite(model.graph, inferred, constants)
        _split_to_slices(model, inferred, constants)
        folded = _replace_empty(model.graph, inferred, constants) + fold_constants(model, inferred.extents, constants)
        changed = bounded
        # An expansion makes the types known that the next one on the way down needs: as many steps as layers.
        while expand_contributed(model, inferred, constants):
            inferred, changed = infer(model, custom), True
        changed |= expand_steps(model, inferred, constants)
        changed |= follow_stated_shapes(model, inferred, constants) | gather_moves(model, inferred, constants)
        changed |= lower_sequences(model, inferred, constants)
        changed |= inline_branches(model.graph, constants) | expand_functions(model, inferred)
        changed |= count_loops(model.graph, inferred, constants)
        if (changed | unroll_loops(model, inferred, constants)) or folded:
            continue
        # Only where the condition, or the number of iterations, will never be known:
        if collect_sequences(model.graph) or choose_branches(model.graph, inferred, constants):
            continue
        if not prepare_loops(model, inferred, constants, lambda inner, own: simplify(inner, custom, own)):
            break
    _fold_batch_norms(model.graph, constants)
    _add_pairwise(model.graph)
    _drop_unused(model.graph)
    return inferred, constants


def _omit_unread(graph: onnx.GraphProto) -> None:
    """Omit the outputs of onnxruntime's operators that nothing reads: exporters name them all, optional ones too."""
    graphs = [graph, *(inner for node in graph.node for inner in inner_graphs(node))]
    read = {value.name for inner in graphs for value in inner.output}
    read |= {name for node in graph.node for name in all_inputs(node)}
    for node in graph.node:
        if node.domain == DOMAIN:
            node.output[:] = [name if name in read else "" for name in node.output]


def _rewrite(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace nodes by simpler ones, by the known types and values of their inputs; return whether shapes may be known
    now that were not."""
    bounded = False
    for node in graph.node:
        if not is_standard(node):
            continue
        if node.op_type == "CastLike" and inferred.types.get(node.input[1]):
            # CastLike uses only the type of its second input.
            node.op_type = "Cast"
            node.attribute.append(onnx.helper.make_attribute("to", inferred.types[node.input[1]]))
            del node.input[1:]
        elif node.op_type == "Concat":
            _drop_empty(node, inferred)
        elif node.op_type == "Slice" and len(node.input) == 1:
            bounded |= _bound_slice(node, inferred)
        elif node.op_type == "OptionalHasElement" and not any(node.input):
            node.op_type = "Constant"  # an empty optional
            del node.input[:]
            value = onnx.numpy_helper.from_array(np.asarray(False))
            node.attribute.append(onnx.helper.make_attribute("value", value))
        elif node.op_type == "Dropout" and len(node.input) > 1 and _is_zero(node.input[1], constants):
            del node.input[1:]  # ratio 0: a no-op in training mode too
    return bounded


def _bound_slice(node: onnx.NodeProto, inferred: Inferred) -> bool:
    """Bring the bounds of a Slice before version 10 into the known extents, in the order of the axes.

    Otherwise onnx infers no shape if it is empty, or if the axes are in another order. Returns whether it did.
    """
    attributes = attributes_of(node)
    extents = inferred.extents.get(node.input[0])
    axes = [int(axis) for axis in attributes.get("axes", range(len(attributes["starts"])))]
    known = None not in inferred.extents.get(node.output[0], (None,))
    if known or extents is None or any(extents[axis] is None for axis in axes):
        return False
    parts = []
    for axis, begin, end in sorted(zip(axes, attributes["starts"], attributes["ends"], strict=True)):
        start, stop, _ = slice(begin, end).indices(extents[axis] or 0)
        parts.append((start, max(start, stop), axis))
    del node.attribute[:]
    for name, values in zip(("starts", "ends", "axes"), zip(*parts, strict=True), strict=True):
        node.attribute.append(onnx.helper.make_attribute(name, values))
    return True


def _split_to_slices(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> None:
    """Replace each Split with an empty part by Slices, so that the empty part can be folded."""

    def sliced(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "Split"):
            return None
        axis = attributes_of(node).get("axis", 0)
        shapes = [inferred.extents.get(name, ()) for name in node.output]
        sizes = [shape[axis] if shape else None for shape in shapes]
        if None in sizes or not any(0 in shape for shape in shapes):
            return None
        nodes, start = [], 0
        for name, size in zip(node.output, sizes, strict=True):
            bounds = (start, start + (size or 0), axis)
            start += size or 0
            if by_attributes:
                given = {key: [value] for key, value in zip(("starts", "ends", "axes"), bounds, strict=True)}
                nodes.append(onnx.helper.make_node("Slice", node.input[:1], [name], name=node.name, **given))
                continue
            operands = [f"{name}.{what}" for what in ("start", "end", "axis")]
            for operand, value in zip(operands, bounds, strict=True):
                constants.add(operand, np.array([value], np.int64), None)
            nodes.append(onnx.helper.make_node("Slice", [node.input[0], *operands], [name], name=node.name))
        return nodes

    by_attributes = (standard_version(model) or 0) < FIRST_SLICE
    rewrite_nodes(model.graph, sliced)


def _replace_empty(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace values with a static shape and a 0 extent by constants, so that no node computes or uses them.

    Constant folding then evaluates their consumers, such as a reduction over an empty axis. Returns whether any were.
    """
    outputs = {value.name for value in graph.output}
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if not is_standard(node):
            nodes.append(node)
            continue
        for index, name in enumerate(node.input):
            if name not in constants and _is_empty(name, inferred):
                node.input[index] = _empty_constant(name, inferred, constants)
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
                source = _empty_constant(name, inferred, constants)
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


def _empty_constant(name: str, inferred: Inferred, constants: Constants) -> str:
    known = f"{name}.empty"
    if known not in constants:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(inferred.types[name])
        constants.add(known, np.empty([extent or 0 for extent in inferred.extents[name]], dtype), None)
    return known


def _is_zero(name: str, constants: Constants) -> bool:
    return name in constants and not constants.array(name).any()


def _drop_empty(node: onnx.NodeProto, inferred: Inferred) -> None:
    """Remove the empty operands of a Concat, unless all are."""
    filled = [name for name in node.input if 0 not in inferred.extents.get(name, ())]
    if filled and len(filled) < len(node.input):
        node.input[:] = filled
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
    writer = NodeWriter(graph, constants.tensors)
    for norm in list(graph.node):
        conv = producer.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or uses[conv.output[0]] != 1:
            continue
        names = [*norm.input[1:5], *conv.input[1:]]
        attributes = attributes_of(norm)
        if not all(name in constants for name in names) or attributes.get("training_mode", 0) or len(norm.output) > 1:
            continue
        gamma, beta, mean, variance = (constants.array(name) for name in norm.input[1:5])
        weight = constants.array(conv.input[1])
        bias = constants.array(conv.input[2]) if len(conv.input) > 2 else np.zeros_like(mean)
        scale = gamma / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
        new_weight = (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
        new_bias = ((bias - mean) * scale + beta).astype(weight.dtype)
        weight_name = writer.fresh(f"{conv.input[1]}.folded")
        constants.add(weight_name, new_weight, [conv.input[1], norm.input[1], norm.input[4]])
        bias_name = writer.fresh(f"{conv.input[2] if len(conv.input) > 2 else norm.input[2]}.folded")
        constants.add(bias_name, new_bias, [*conv.input[2:], *norm.input[1:5]])
        del conv.input[1:]
        conv.input.extend([weight_name, bias_name])
        conv.output[0] = norm.output[0]
        graph.node.remove(norm)


def _add_pairwise(graph: onnx.GraphProto) -> None:
    """Replace Sum by a chain of Add, which fuses with its neighbors: TVM would stack the terms and reduce them."""
    writer = NodeWriter(graph)

    def added(_index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "Sum") or len(node.input) < 2:
            return None
        totals = [writer.fresh(f"{node.output[0]}.{index}") for index in range(2, len(node.input))]
        operands = zip([node.input[0], *totals], node.input[1:], [*totals, node.output[0]], strict=True)
        return [onnx.helper.make_node("Add", [a, b], [total], name=node.name) for a, b, total in operands]

    rewrite_nodes(graph, added)


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            while node.op_type in OPTIONAL_OUTPUTS and node.output[-1] not in used:
                del node.output[-1:]
            if is_standard(node) and node.op_type in RECURRENT:
                node.output[:] = [name if name in used else "" for name in node.output]
            kept.append(node)
            used.update(all_inputs(node))
    replace_all(graph.node, reversed(kept))
    replace_all(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in used])

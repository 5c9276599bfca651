"""Checks an ONNX model as a runtime does: what can be computed is read, what the standard forbids is a warning.

onnxruntime loads files that onnx's checker refuses: of old IR versions with initializers that are no inputs, with
operators of its own in the standard domain, with nodes in any order.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import onnx

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.errors import ModelError
from packager.frontends.onnx.graph.external_data import all_tensors, is_declared
from packager.frontends.onnx.graph.nodes import (
    all_inputs,
    inner_graphs,
    is_standard,
    replace_all,
    title_of,
)

# No operator set has a greater number: the bindings of onnx take 32 bits.
MAX_VERSION = 2**31 - 1


def check(path: Path, model: onnx.ModelProto) -> tuple[str, ...]:
    """Return warnings about the model; sort its nodes if they are not in order.

    External data is not read yet, so not checked. Raises ModelError if values are missing, defined twice or in a cycle,
    and for nodes of standard operators without the inputs or attributes that these have.
    """
    fault = _objection(model)
    if fault is not None:
        sort_nodes(model.graph)
    for broken in itertools.chain(_structural_faults(model) if fault else (), _malformed_nodes(model)):
        hint = "export the model again, and look at it with onnx.checker.check_model"
        raise ModelError(f"{path}: is not a valid ONNX model: {broken}", detail=fault or "", hint=hint)
    if fault is None:
        return ()
    return (f"{path.name} is not standard ONNX: {fault.splitlines()[0]}",)


def _objection(model: onnx.ModelProto) -> str | None:
    """Return what onnx's checker says against a model."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    # The checker requires a shape for every output, which shape inference makes unnecessary.
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    # It also opens external data, relative to the current folder: replaced by an empty tensor.
    for tensor in filter(is_declared, all_tensors(bare)):
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    try:
        onnx.checker.check_model(bare)
    except (onnx.checker.ValidationError, ValueError) as error:
        return str(error).strip() or type(error).__name__
    return None


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put the nodes of a graph in an order in which values are computed before they are read, if there is one."""
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = {
        index: {producer[name] for name in all_inputs(node) if name in producer} - {index}
        for index, node in enumerate(graph.node)
    }
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError:
        return
    nodes = list(graph.node)
    replace_all(graph.node, [nodes[index] for index in order])


def _structural_faults(model: onnx.ModelProto) -> Iterator[str]:
    graph = model.graph
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import) and not model.functions:
        yield "it imports no version of the standard operators"
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                yield f"node {title_of(node)!r} reads {name!r}, which nothing computes before"
        for name in filter(None, node.output):
            if name in known:
                yield f"{name!r} is defined twice, the second time by node {title_of(node)!r}"
            known.add(name)
    for value in graph.output:
        if value.name not in known:
            yield f"nothing computes output {value.name!r}"


def _malformed_nodes(model: onnx.ModelProto) -> Iterator[str]:
    """Yield nodes that the schemas of their operators do not allow; operators without a schema are looked at later.

    onnx's checker does not see that an input is left out which is not optional.
    """
    versions = {"" if entry.domain in STANDARD_DOMAINS else entry.domain: entry.version for entry in model.opset_import}
    inner = (graph for node in model.graph.node for graph in inner_graphs(node))
    for node in (node for graph in (model.graph, *inner) for node in graph.node):
        domain = "" if is_standard(node) else node.domain
        if domain not in versions or not onnx.defs.has(node.op_type, domain):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, min(versions[domain], MAX_VERSION), domain)
        except onnx.defs.SchemaError:  # the operator is younger
            continue
        title = f"node {title_of(node)!r} of operator {node.op_type}"
        if not schema.min_input <= len(node.input) <= schema.max_input:
            yield f"{title} has {len(node.input)} inputs"
        formal = schema.inputs
        for place, name in enumerate(node.input[: len(formal)] if formal else ()):
            if not name and formal[place].option != onnx.defs.OpSchema.FormalParameterOption.Optional:
                yield f"{title} lacks input {place} ({formal[place].name})"
        if formal and not all(node.input[len(formal) :]):
            yield f"{title} leaves one of its inputs out"
        if not schema.min_output <= len(node.output) <= schema.max_output:
            yield f"{title} has {len(node.output)} outputs"
        kinds = {attribute.name: int(attribute.type) for attribute in node.attribute}
        for name, known in schema.attributes.items():
            if known.required and name not in kinds:
                yield f"{title} lacks the attribute {name!r}"
            if name in kinds and kinds[name] != int(known.type.value):
                yield f"{title} has an attribute {name!r} of another type"

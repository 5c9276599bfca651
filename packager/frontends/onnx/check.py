"""Checks an ONNX model as a runtime does: what can be computed is read, what the standard forbids is a warning.

onnxruntime loads files that onnx's checker refuses: of old IR versions with initializers that are no inputs, with
operators of its own in the standard domain, with nodes in any order.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from pathlib import Path

import onnx

from packager.errors import ModelError
from packager.frontends.onnx.graph.external_data import all_tensors, is_declared
from packager.frontends.onnx.graph.nodes import all_inputs, replace_all, title_of


def check(path: Path, model: onnx.ModelProto) -> tuple[str, ...]:
    """Return warnings about the model; sort its nodes if they are not in order.

    External data is not read yet, so not checked. Raises ModelError if values are missing, defined twice or in a cycle.
    """
    fault = _objection(model)
    if fault is None:
        return ()
    sort_nodes(model.graph)
    for broken in _structural_faults(model):
        raise ModelError(f"{path}: is not a valid ONNX model: {broken}", detail=fault)
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

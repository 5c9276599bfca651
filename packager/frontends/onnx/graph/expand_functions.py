"""Expand ONNX operators into others before import: by the functions of their schemas; ``If`` by its branches.

https://onnx.ai/onnx/repo-docs/IR.html#functions: a schema may define its operator by a graph of others, which may
depend on the node and its input types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import attributes_of, is_standard, replace_all, rewrite_nodes, title_of

# Operators that TVM's importer lacks or computes wrongly, and for which the function is as fast as a converter.
EXPANDED = {
    *("AffineGrid", "CenterCropPad", "BlackmanWindow", "HannWindow", "HammingWindow"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
    *("CausalConvWithState", "LinearAttention", "FlexAttention"),
    *("Swish", "SwiGLU"),
}
PREVIEW_DOMAINS = ("ai.onnx.preview",)


def expand_functions(model: onnx.ModelProto, inferred: Inferred) -> bool:
    """Replace nodes in EXPANDED by the bodies of their functions; return whether there were any.

    A node is kept while its input types are unknown, or if its schema has no function for its version.
    """
    versions = {entry.domain or "": entry.version for entry in model.opset_import}

    def expanded(index: int, node: onnx.NodeProto) -> Iterator[onnx.NodeProto] | None:
        body = _function_of(node, versions, inferred) if node.op_type in EXPANDED else None
        if body is None:
            return None
        for entry in body.opset_import:
            if (entry.domain or "") not in versions:
                model.opset_import.append(entry)
                versions[entry.domain or ""] = entry.version
        return _inlined(node, body, f"{title_of(node)}.{index}.")

    return rewrite_nodes(model.graph, expanded)


def _function_of(node: onnx.NodeProto, versions: Mapping[str, int], inferred: Inferred) -> onnx.FunctionProto | None:
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    if (domain and domain not in PREVIEW_DOMAINS) or domain not in versions:
        return None
    schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    if any(name and name not in inferred.protos for name in node.input):
        return None
    complete = onnx.NodeProto()
    complete.CopyFrom(node)
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            complete.attribute.append(attribute.default_value)
    types = [inferred.protos[name] if name else onnx.TypeProto() for name in node.input]
    body = onnx.FunctionProto()
    standard = versions.get("", onnx.defs.onnx_opset_version())
    if fits := [v for v in schema.context_dependent_function_opset_versions if v <= standard or domain]:
        encoded = [ty.SerializeToString() for ty in types]
        text = schema.get_context_dependent_function_with_opset_version(fits[-1], complete.SerializeToString(), encoded)
    elif fits := [v for v in schema.function_opset_versions if v <= standard or domain]:
        text = schema.get_function_with_opset_version(fits[-1])
    else:
        return None
    body.ParseFromString(text)
    if node.op_type == "AffineGrid":
        _squeeze_one_axis(body.node)
    del body.attribute_proto[:]
    node.CopyFrom(complete)
    return body if body.node else None


def _squeeze_one_axis(nodes: Sequence[onnx.NodeProto]) -> None:
    """Let AffineGrid-20 drop axis 1 of its rows of theta: its function would drop a batch of extent 1 with it."""
    for node in nodes:
        if node.op_type == "Squeeze" and len(node.input) == 1:
            node.input.append("one_1d")
        for attribute in node.attribute:
            _squeeze_one_axis(attribute.g.node)


def _inlined(node: onnx.NodeProto, body: onnx.FunctionProto, prefix: str) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a function body with the names and attributes of the calling ``node`` substituted."""
    names = {name: node.input[i] if i < len(node.input) else "" for i, name in enumerate(body.input)}
    names |= {name: node.output[i] for i, name in enumerate(body.output) if i < len(node.output) and node.output[i]}
    attributes = {attribute.name: attribute for attribute in node.attribute}

    def rename(name: str) -> str:
        return names.get(name, prefix + name if name else "")

    for part in body.node:
        yield renamed_node(part, rename, attributes, title_of(node))


def renamed_node(
    node: onnx.NodeProto,
    rename: Callable[[str], str],
    attributes: Mapping[str, onnx.AttributeProto] | None,
    title: str | None,
) -> onnx.NodeProto:
    """Return a copy of a node with renamed values; ``attributes`` resolve its attribute references."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [rename(name) for name in node.input]
    copy.output[:] = [rename(name) for name in node.output]
    if title is not None:
        copy.name = title
    del copy.attribute[:]
    for attribute in node.attribute:
        given: onnx.AttributeProto | None = attribute
        if attribute.ref_attr_name and attributes is not None:
            given = attributes.get(attribute.ref_attr_name)
        if given is None:
            continue  # omitted by the caller, thus by the body too
        copied = copy.attribute.add()
        copied.CopyFrom(given)
        copied.name = attribute.name
        if attribute.HasField("g"):
            _rename_graph(copied.g, rename, attributes)
    return copy


def _rename_graph(
    graph: onnx.GraphProto, rename: Callable[[str], str], attributes: Mapping[str, onnx.AttributeProto] | None
) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = rename(value.name)
    replace_all(graph.node, [renamed_node(node, rename, attributes, None) for node in graph.node])


def inline_branches(graph: onnx.GraphProto, constants: Constants) -> bool:
    """Replace each ``If`` whose condition is constant by its branch; return whether there were any."""

    def inlined(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "If") or node.input[0] not in constants:
            return None
        chosen = "then_branch" if bool(constants.array(node.input[0]).reshape(-1)[0]) else "else_branch"
        branch = attributes_of(node)[chosen]
        return branch_nodes(node, list(node.output), branch, constants, f"{title_of(node)}.{index}.")

    return rewrite_nodes(graph, inlined)


def branch_nodes(
    node: onnx.NodeProto, results: Sequence[str], branch: onnx.GraphProto, constants: Constants, prefix: str
) -> list[onnx.NodeProto]:
    """Return the nodes of a branch, with its outputs renamed to ``results``."""
    inner = {name for part in branch.node for name in part.output} | {t.name for t in branch.initializer}
    names = {name: prefix + name for name in inner if name}
    for tensor in branch.initializer:
        constants.add(names[tensor.name], onnx.numpy_helper.to_array(tensor), None)
    made = [renamed_node(part, lambda name: names.get(name, name), None, None) for part in branch.node]
    for result, value in zip(results, branch.output, strict=False):
        if result:
            source = names.get(value.name, value.name)
            made.append(onnx.helper.make_node("Identity", [source], [result], name=node.name))
    return made

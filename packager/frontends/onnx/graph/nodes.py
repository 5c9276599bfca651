"""Read and rewrite the nodes of an ONNX graph: what the passes of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.errors import ModelError, PackagerError, last_line

BRANCH = "packager.branch"
"""Key of a node's metadata: a list of [value name of a condition, 1 or 0] that it is computed under."""


def is_standard(node: onnx.NodeProto, *operators: str) -> bool:
    """Tell whether a node is of the standard operator set, and of one of ``operators`` if there are any."""
    return node.domain in STANDARD_DOMAINS and (not operators or node.op_type in operators)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def title_of(node: onnx.NodeProto) -> str:
    """Return the name of a node for messages; if it has none, the name of its first output."""
    return node.name or next(filter(None, node.output), str(node.op_type))


def standard_version(model: onnx.ModelProto) -> int | None:
    """Return the version of the standard operator set that a model imports, if any."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), None)


def replace_all(field: Any, values: Iterable[Any]) -> None:
    """Replace the messages of a repeated field."""
    kept = list(values)
    del field[:]
    field.extend(kept)


@contextmanager
def blamed(node: onnx.NodeProto) -> Iterator[None]:
    """Turn what a pass did not expect of a node, operands that no model has, into a ModelError with its name."""
    try:
        yield
    except PackagerError:
        raise
    except Exception as error:
        raise ModelError(
            f"node {title_of(node)!r} of operator {node.op_type} cannot be imported",
            detail=f"{type(error).__name__}: {last_line(error)}",
            hint="look whether its inputs and attributes are those of the operator",
        ) from error


def rewrite_nodes(
    graph: onnx.GraphProto, rewrite: Callable[[int, onnx.NodeProto], Iterable[onnx.NodeProto] | None]
) -> bool:
    """Replace nodes by what ``rewrite`` returns for index and node, None to keep it; return whether any was.

    Raises ModelError (``blamed``).
    """
    nodes: list[onnx.NodeProto] = []
    changed = False
    for index, node in enumerate(graph.node):
        with blamed(node):
            made = rewrite(index, node)
        nodes.extend([node] if made is None else in_branch_of(node, made))
        changed |= made is not None
    replace_all(graph.node, nodes)
    return changed


def in_branch_of(node: onnx.NodeProto, made: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes that are in place of one: they are computed under its condition, if they have none of their own."""
    marks = [entry for entry in node.metadata_props if entry.key == BRANCH]
    for part in made:
        if part is not node and not any(entry.key == BRANCH for entry in part.metadata_props):
            part.metadata_props.extend(marks)
        yield part


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node, and those of their nodes."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield graph
            for part in graph.node:
                yield from inner_graphs(part)


def all_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node and the nodes of its subgraphs read."""
    return [*node.input, *(name for graph in inner_graphs(node) for part in graph.node for name in part.input)]


def evaluator(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], inputs: Iterable[str], outputs: Iterable[str]
) -> ReferenceEvaluator:
    """Return onnx's reference evaluator of some nodes of a model. Raises if it lacks one of the operators."""
    graph = onnx.GraphProto(name="fold", node=nodes)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name)
    return ReferenceEvaluator(
        onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    )


class NodeWriter:
    """The nodes of a graph while it is rewritten, and the names of values that are taken."""

    def __init__(self, graph: onnx.GraphProto, taken: Iterable[str] = ()) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}.union(taken)

    def fresh(self, name: str) -> str:
        """Return a name that no value has, and take it."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def emit(self, like: onnx.NodeProto, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node that belongs to the source node ``like``; return its output."""
        self.nodes.append(helper.make_node(operator, inputs, [output], name=title_of(like), **attributes))
        return output

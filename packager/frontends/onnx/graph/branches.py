"""Replaces ``If`` on a run-time condition by both of its branches, of which a run computes one.

The nodes of the branches become nodes of the graph, marked with the condition that they are computed under; ``Choose``
takes the results of the branch that is taken. Small branches with results of the same static shape are both computed
and chosen from by element, which fuses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from packager.errors import ModelError, last_line
from packager.frontends.onnx.graph.expand_functions import branch_nodes
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import BRANCH, attributes_of, is_standard, rewrite_nodes, title_of

CHOOSE = "Choose"
SMALL = "small"  # attribute of Choose
# Branches of up to this many nodes cost less than to ask which is taken.
MAX_COMPUTED = 8

Branch = tuple[tuple[str, int], ...]


def branch_of(node: onnx.NodeProto) -> Branch:
    """Return the (condition, 1 or 0) pairs under which a node is computed; () if always."""
    marks = [entry.value for entry in node.metadata_props if entry.key == BRANCH]
    return tuple((str(name), int(taken)) for mark in marks for name, taken in json.loads(mark))


def not_imported(what: str, error: Exception, conditions: Sequence[Any]) -> ModelError:
    """Return the error for a node that the importer fails at, with the conditions that it is computed under."""
    hint = "this use of the operator is not supported"
    if conditions:
        hint = (
            "it is in a branch of an If that the run chooses; if inputs of these sizes never take it, make a constant"
            " of the input that decides: --freeze NAME=JSON"
        )
    return ModelError(f"node {what} cannot be imported", detail=last_line(error), hint=hint)


def choose_branches(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace each ``If`` by its branches and Choose, or Where; return whether there were any."""

    def inlined(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "If"):
            return None
        branches, prefix = attributes_of(node), f"{title_of(node)}.{index}."
        condition = f"{prefix}condition"
        nodes = [helper.make_node("Reshape", [node.input[0], _scalar(constants)], [condition], name=node.name)]
        parts: list[onnx.NodeProto] = []
        results = []
        for name, taken in (("then_branch", 1), ("else_branch", 0)):
            results.append([f"{prefix}{name}.{output}" for output in node.output])
            made = branch_nodes(node, results[-1], branches[name], constants, f"{prefix}{name}:")
            for number, part in enumerate(made):
                part.name = f"{prefix}{name}.{number}.{part.name}"
                _mark(part, (*branch_of(node), (condition, taken)))
            parts += made
        is_small = len(parts) - 2 * len(node.output) <= MAX_COMPUTED
        for output, first, second in zip(node.output, *results, strict=True):
            operands = [condition, first, second]
            parts.append(helper.make_node(CHOOSE, operands, [output], name=node.name, **{SMALL: int(is_small)}))
            if inferred.types.get(output) and output not in {value.name for value in graph.value_info}:
                graph.value_info.append(_declaration(output, inferred))
        for part in (nodes[0], *parts[-len(node.output) :]):
            _mark(part, branch_of(node))
        return [*nodes, *parts]

    return rewrite_nodes(graph, inlined)


def _scalar(constants: Constants) -> str:
    """Return a constant that is the shape of a scalar."""
    name = "packager.scalar"
    if name not in constants:
        constants.add(name, np.empty(0, np.int64), None)
    return name


def _mark(node: onnx.NodeProto, branch: Branch) -> None:
    kept = [entry for entry in node.metadata_props if entry.key != BRANCH]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)
    if branch:
        node.metadata_props.add(key=BRANCH, value=json.dumps(branch))


def _declaration(name: str, inferred: Inferred) -> onnx.ValueInfoProto:
    """Return a declaration of the type of a Choose, which onnx cannot infer."""
    return onnx.ValueInfoProto(name=name, type=inferred.protos[name])

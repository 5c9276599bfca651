"""Refuse uses of ONNX operators that TVM's importer accepts but computes wrongly.

Found by running onnx's operator test cases (``onnx.backend.test.case.node``). Entries are for TVM 0.27.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from packager.errors import ModelError

STRINGS_HINT = "bundles compute with numbers: turn strings into numbers before, and cut the model there"


class NodeFacts:
    """The properties of a node that refusals test: attributes, element types of inputs, and constant inputs."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, Any]) -> None:
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.input_types = [types.get(name) for name in node.input]
        self.inputs = list(node.input)
        self.constants = constants

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)


def _is_training(facts: NodeFacts) -> bool:
    if facts.attributes.get("training_mode", 0):
        return True
    if len(facts.inputs) < 3 or not facts.inputs[2]:
        return False
    return bool(facts.constants.get(facts.inputs[2], True))  # not constant: it may be true


# Operator -> (the refused use, a predicate of it).
LIMITS: dict[str, tuple[str, Callable[[NodeFacts], bool]]] = {
    "Dropout": ("in training mode", _is_training),
}


def refused_use(node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, Any]) -> str | None:
    """Return the refused use of an operator by a node, else None.

    ``types`` are ONNX element types of values by name, ``constants`` the values of small initializers.
    """
    limit = LIMITS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if limit is None:
        return None
    what, applies = limit
    return what if applies(NodeFacts(node, types, constants)) else None


def refuse_strings(graph: onnx.GraphProto) -> None:
    """Raise ModelError for inputs, outputs and initializers of strings, which bundles do not support."""
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
                raise ModelError(f"{kind} {value.name!r} holds strings", hint=STRINGS_HINT)
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelError(f"initializer {tensor.name!r} holds strings", hint=STRINGS_HINT)

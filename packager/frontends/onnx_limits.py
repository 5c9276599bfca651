"""Uses of ONNX operators that TVM's importer takes and computes wrongly: refused by name instead.

Found by running onnx's own operator cases (``onnx.backend.test.case.node``) through packager. Each entry says what is
wrong with TVM 0.27.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

FLOATS = {
    *(onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16),
}
SIGNED = {onnx.TensorProto.INT8, onnx.TensorProto.INT16, onnx.TensorProto.INT32, onnx.TensorProto.INT64}


class NodeFacts:
    """What a limit looks at: the attributes of a node, the element types of its inputs, and its constant inputs."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, Any]) -> None:
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self.input_types = [types.get(name) for name in node.input]
        self.inputs = list(node.input)
        self.constants = constants

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)


def _trains(facts: NodeFacts) -> bool:
    if facts.attributes.get("training_mode", 0):
        return True
    if len(facts.inputs) < 3 or not facts.inputs[2]:
        return False
    return bool(facts.constants.get(facts.inputs[2], True))  # not constant: it may be true


# Operator -> (what is refused, whether a node is such a use).
LIMITS: dict[str, tuple[str, Callable[[NodeFacts], bool]]] = {
    "BatchNormalization": ("in training mode", lambda f: bool(f.attributes.get("training_mode", 0))),
    "Dropout": ("in training mode", _trains),
    # Shifts by a negative count, or by the width and more, give other values than the standard says.
    "BitShift": ("of signed integers", lambda f: f.input_types[0] in SIGNED),
    # floor(x / y) overflows to infinity or loses the sign of zero.
    "Mod": ("of floats with fmod=0", lambda f: f.input_types[0] in FLOATS and not f.attributes.get("fmod", 0)),
    "IsInf": (
        "of one sign",
        lambda f: not (f.attributes.get("detect_negative", 1) and f.attributes.get("detect_positive", 1)),
    ),
    "RoiAlign": ("with mode=max", lambda f: f.text("mode", "avg") == "max"),
    "SpaceToDepth": ("with mode=CRD", lambda f: f.text("mode", "DCR") == "CRD"),
}


def refused_use(node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, Any]) -> str | None:
    """Return how a node uses its operator if that use is computed wrongly, else None.

    ``types`` are ONNX element types of values by name, ``constants`` the values of small initialisers.
    """
    limit = LIMITS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if limit is None:
        return None
    what, applies = limit
    return what if applies(NodeFacts(node, types, constants)) else None

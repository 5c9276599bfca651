"""Writes the nodes that a contributed operator expands to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import helper

from packager.bundle.arrays import Array
from packager.frontends.onnx.graph.fold_constants import Constants, Extents
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import attributes_of, title_of


class NotYetError(Exception):
    """The types of the node's inputs are not known yet: those of earlier nodes must be expanded first."""


class Body:
    """The expansion of one node: its operands, and the nodes written so far."""

    def __init__(self, node: onnx.NodeProto, inferred: Inferred, constants: Constants, prefix: str, opset: int) -> None:
        self.node = node
        self.opset = opset
        self.attributes = attributes_of(node)
        self.nodes: list[onnx.NodeProto] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self._inferred, self._constants, self._prefix = inferred, constants, prefix

    def input(self, index: int) -> str:
        """Return an input's name; empty if it is left out."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def wants(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.node.output) and bool(self.node.output[index])

    def type_of(self, name: str) -> int:
        """Return the element type of a value. Raises NotYetError."""
        found = self._inferred.types.get(name, 0)
        if not found:
            raise NotYetError
        return found

    def extents(self, name: str) -> Extents:
        """Return the extents of a value, None where unknown. Raises NotYetError if the rank is unknown."""
        if name not in self._inferred.extents:
            raise NotYetError
        return self._inferred.extents[name]

    def output(self, index: int) -> str:
        """Return an output's name; empty if it is left out."""
        return str(self.node.output[index]) if self.wants(index) else ""

    def dims(self, name: str) -> tuple[int | str | None, ...]:
        """Return the extents of a value, names where these are symbolic; () if nothing is known."""
        proto = self._inferred.protos.get(name)
        shape = proto.tensor_type.shape.dim if proto is not None else ()
        return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape)

    def declare(self, name: str, kind: int, extents: Extents) -> None:
        """State the type of a value that was written, which onnx may not infer: other rules may need it."""
        self.declared.append(helper.make_tensor_value_info(name, kind, extents))

    def constant_of(self, name: str, what: str) -> Array:
        """Return the value of a constant. Raises ValueError if it is computed at run time."""
        if name not in self._constants:
            raise ValueError(f"{what} is not constant: freeze it with --freeze")
        return self._constants.array(name)

    def find_constant(self, name: str) -> Array | None:
        """Return the value of a constant, or None."""
        return self._constants.array(name) if name in self._constants else None

    def flag(self, name: str, default: Any = 0) -> Any:
        """Return an attribute; texts as str."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def required(self, name: str) -> Any:
        """Return an attribute. Raises ValueError if the node lacks it."""
        if name not in self.attributes:
            raise ValueError(f"it lacks the attribute {name}")
        return self.attributes[name]

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Write a node with one output; return the output's name."""
        return self.several(operator, inputs, 1, **attributes)[0]

    def several(self, operator: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Write a node with ``count`` outputs; return their names."""
        names = [f"{self._prefix}{len(self.nodes)}.{index}" for index in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=title_of(self.node), **attributes))
        return names

    def array(self, value: Any, dtype: Any) -> str:
        """Return a constant."""
        array = np.asarray(value, dtype=dtype)
        return self("Constant", value=onnx.numpy_helper.from_array(array))

    def number(self, value: float, like: str) -> str:
        """Return a scalar of the element type of ``like``."""
        return self.array(value, helper.tensor_dtype_to_np_dtype(self.type_of(like)))

    def integers(self, *values: int) -> str:
        """Return a vector of int64."""
        return self.array(values, np.int64)

    def unsqueezed(self, name: str, axis: int) -> str:
        """Insert an axis."""
        return (
            self("Unsqueeze", name, self.integers(axis)) if self.opset >= 13 else self("Unsqueeze", name, axes=[axis])
        )

    def split(self, name: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        """Return consecutive parts along an axis."""
        starts = np.cumsum([0, *sizes])
        return [
            self("Slice", name, self.integers(int(a)), self.integers(int(b)), self.integers(axis))
            for a, b in pairwise(starts)
        ]


# Writes the expansion of a node and returns its outputs; empty for those that are not used.
Rule = Callable[[Body], Sequence[str]]

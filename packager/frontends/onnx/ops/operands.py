"""Helpers of ONNX converters: extents and constant values of operands, attributes, opset; the converter types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.bundle.arrays import Array
from packager.graph import rewrite
from packager.graph.dataflow import shape_of


def extents(data: Any) -> list[Any]:
    """Return the extents of a tensor: integers or expressions. Raises ValueError if the rank is unknown."""
    shape = shape_of(data)
    if shape is None:
        raise ValueError("an input has no known rank")
    return list(shape)


def static_extents(data: Any, what: str = "an input", first: int = 0) -> list[int]:
    """Return the extents of a tensor from axis ``first`` on. Raises ValueError unless all are integers."""
    found = extents(data)[first:]
    if not all(isinstance(extent, int) for extent in found):
        raise ValueError(f"{what} has symbolic extents {[str(extent) for extent in found]}: fix them with --dim")
    return found


def dtype_of(data: Any) -> str:
    """Return the element type of a tensor under numpy's name."""
    return str(data.ty.dtype)


def as_type(builder: Any, data: Any, dtype: str) -> Any:
    """Return a tensor, cast unless it has the type already."""
    return rewrite.as_type(builder.emit, data, dtype)


def constant(data: Any, attributes: Mapping[str, Any]) -> Array | None:
    """Return the value of a constant operand (inline or a parameter), else None."""
    if isinstance(data, GenericConst):
        return np.asarray(data.value.numpy())
    if isinstance(data, relax.ShapeExpr) and all(isinstance(extent, tirx.IntImm) for extent in data.values):
        return np.array([int(extent) for extent in data.values], dtype=np.int64)
    parameters = attributes["tvm_custom"]["params"]
    name = getattr(data, "name", "")
    return parameters.array(name) if name in parameters and parameters.variable(name).same_as(data) else None


def known(data: Any, attributes: Mapping[str, Any], what: str) -> Array:
    """Return the value of a constant operand. Raises ValueError if it is not constant."""
    value = constant(data, attributes)
    if value is None:
        raise ValueError(f"{what} is not constant: freeze it with --freeze")
    return value


def opset(attributes: Mapping[str, Any]) -> int:
    """Return the version of the standard operator set that the model imports."""
    return int(attributes["tvm_custom"]["opset"])


def output_count(attributes: Mapping[str, Any]) -> int:
    """Return the number of outputs of the node, including trailing omitted ones."""
    return int(attributes["tvm_custom"]["num_outputs"])


def text(attributes: Mapping[str, Any], name: str, default: str) -> str:
    """Return a string attribute."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def optional(inputs: Sequence[Any], index: int) -> Any | None:
    """Return an input, or None if it is omitted."""
    return inputs[index] if index < len(inputs) else None


def tensor_constant(array: Array) -> Any:
    """Return an array as a Relax constant."""
    return relax.const(np.ascontiguousarray(array), str(array.dtype))


def require(attributes: Mapping[str, Any], left: Any, relation: str, right: Any) -> None:
    """Let each run check a relation of extents that cannot be proved. Raises ModelError if it never holds."""
    given = attributes["tvm_custom"]
    given["relations"].require(left, relation, right, given["node"])


# Converts a standard operator, given its name, inputs and attributes.
Convert = Callable[[str, list[Any], dict[str, Any]], Any]

# Converts a node, given a block builder, inputs, attributes, and a Convert for standard operators.
Converter = Callable[[Any, Sequence[Any], dict[str, Any], Convert], Any]

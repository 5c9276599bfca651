"""Attributes of ``ai.onnx.ml`` operators as arrays, with checked lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.operands import as_type, extents, static_extents
from packager.graph.lift_constants import stays_inline


def array(attributes: Mapping[str, Any], name: str, dtype: Any = None) -> Array:
    """Return an attribute as an array, empty if it is absent."""
    value = attributes.get(name, ())
    found = numpy_helper.to_array(value) if hasattr(value, "data_type") else np.asarray(value)
    return found if dtype is None else found.astype(dtype)


def either(attributes: Mapping[str, Any], name: str, dtype: Any) -> Array:
    """Return an attribute, or its variant ``<name>_as_tensor``, whose type is kept. Raises ValueError if both exist."""
    given, tensor = array(attributes, name, dtype), array(attributes, f"{name}_as_tensor")
    if given.size and tensor.size:
        raise ValueError(f"{name} and {name}_as_tensor are both given")
    return tensor if tensor.size else given


def weight(attributes: Mapping[str, Any], name: str, values: Array) -> Any:
    """Return an array as a parameter of the model, or as a constant if it is small."""
    if stays_inline(values):
        return relax.const(np.ascontiguousarray(values), str(values.dtype))
    return parameter(attributes, name, values)


def parameter(attributes: Mapping[str, Any], name: str, values: Array) -> Any:
    """Return an array as a parameter of the model."""
    custom = attributes["tvm_custom"]
    return custom["params"].make(f"{custom['name'] or 'ml'}.{name}", values)


def require_length(what: str, found: Array, length: int) -> None:
    """Raise ValueError for an attribute of another length."""
    if found.size != length:
        raise ValueError(f"{what} has {found.size} elements, expected {length}")


def as_rows(builder: Any, data: Any, dtype: str | None = None) -> Any:
    """Return the input as [rows, features]; a vector is one row. Raises ValueError for another rank."""
    shape = extents(data)
    if len(shape) == 1:
        data = builder.emit(relax.op.expand_dims(data, 0))
    elif len(shape) != 2:
        raise ValueError(f"an input of rank {len(shape)}, expected [rows, features]")
    static_extents(data, "the features", first=1)
    return as_type(builder, data, dtype) if dtype else data


def class_labels(attributes: Mapping[str, Any], names: Sequence[str]) -> Array:
    """Return the classes, which are numbers by now. Raises ValueError if there are none."""
    for name in names:
        if name in attributes:
            return array(attributes, name, np.int64)
    raise ValueError(f"there are no class labels: expected {names[0]}")

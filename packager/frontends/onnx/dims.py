"""Name the symbolic dims of an ONNX model's inputs with identifiers, and fix dims to sizes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

import onnx

from packager.errors import ModelError

# The manifest limits the length of shape expressions, which contain dim names.
MAX_DIM_NAME = 64


def name_dims(graph: onnx.GraphProto) -> dict[str, str]:
    """Rename every symbolic dim of the inputs to an identifier; return name -> first occurrence."""
    found: dict[str, str] = {}
    names: dict[object, str] = {}  # name in the file, or position if unnamed -> identifier
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            raise ModelError(
                f"input {value.name!r} is not a tensor with a known rank",
                hint="give the input a shape in the model; its extents may be symbolic",
            )
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
                continue
            key = dim.dim_param or (value.name, axis)
            if key not in names:
                names[key] = _identifier(dim.dim_param or f"{value.name}_{axis}", set(names.values()))
            dim.dim_param = names[key]
            found.setdefault(dim.dim_param, f"input {value.name!r}, axis {axis}")
    return found


def _identifier(spelled: str, taken: set[str]) -> str:
    """Return a unique ASCII identifier for a dim."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", spelled).strip("_")[:MAX_DIM_NAME] or "dim"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"dim_{name}"
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def fix_dims(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    """Fix the input dims in ``sizes``. Raises ModelError for an extent of 0 beside symbolic ones."""
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_param for dim in dims) and any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
            raise ModelError(
                f"input {value.name!r} has an extent of 0 beside symbolic ones",
                hint="fix its other dims with --dim: empty tensors must have static shapes",
            )

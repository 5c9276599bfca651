"""The symbolic dims of an ONNX model's inputs: named so that they can stand in expressions, and fixed on request."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

import onnx

from packager.errors import ModelError

# Names of dims stand in shape expressions, whose length the manifest limits.
MAX_DIM_NAME = 64


def name_dims(graph: onnx.GraphProto) -> dict[str, str]:
    """Give every symbolic dim of the inputs an identifier as its name; return name -> where it stands."""
    found: dict[str, str] = {}
    names: dict[object, str] = {}  # as the file spells them, or where they stand -> as identifiers
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
    """Return an ASCII identifier for a dim, other than those of dims that are spelled otherwise."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", spelled).strip("_")[:MAX_DIM_NAME] or "dim"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"dim_{name}"
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def fix_dims(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    """Give the dims of the inputs that are in ``sizes`` these sizes. Raises ModelError for a 0 beside symbolic dims."""
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_param for dim in dims) and any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
            raise ModelError(
                f"input {value.name!r} has an extent of 0 beside symbolic ones",
                hint="fix its other dims with --dim: values without elements need extents that are known",
            )

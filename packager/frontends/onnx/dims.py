"""Name the symbolic dims of an ONNX model's inputs with identifiers, and fix dims to sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx

from packager.bundle import shape_expr
from packager.errors import ModelError
from packager.frontends.dims import identifier


def name_dims(graph: onnx.GraphProto) -> tuple[dict[str, str], dict[str, str]]:
    """Rename every symbolic dim of the inputs to an identifier.

    Returns name -> first occurrence, and name -> expression over other dims for those that the file names so, as
    exporters do: ``past_sequence_length + sequence_length``.
    """
    found: dict[str, str] = {}
    spelled: dict[str, str] = {}
    names: dict[object, str] = {}  # name in the file, or position if unnamed -> identifier
    for value in graph.input:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type" or not value.type.tensor_type.HasField("shape"):
            raise ModelError(
                f"input {value.name!r} is not a tensor with a known rank",
                hint="give the input a shape in the model; its extents may be symbolic",
            )
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param.isascii() and dim.dim_param.isdigit():
                dim.dim_value = int(dim.dim_param)  # some exporters write an extent as the name of a dim
            if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
                continue
            spelling = dim.dim_param if re.search(r"\w", dim.dim_param) else ""  # Paddle's exporter writes "?"
            key = spelling or (value.name, axis)
            if key not in names:
                names[key] = identifier(spelling or f"{value.name}_{axis}", set(names.values()))
            spelled[names[key]] = dim.dim_param
            dim.dim_param = names[key]
            found.setdefault(dim.dim_param, f"input {value.name!r}, axis {axis}")
    return found, {name: text for name, text in spelled.items() if name != text and _is_expression(text, found)}


def _is_expression(text: str, dims: Mapping[str, str]) -> bool:
    """Whether a name computes something from dims; another spelling of one dim, such as ``(n)``, does not."""
    try:
        inside = shape_expr.names(text)
        computes = shape_expr.fold(text, lambda _: False, lambda _: False, lambda *_: True)
    except shape_expr.ShapeExpressionError:
        return False
    return computes and bool(inside) and inside <= dims.keys()


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

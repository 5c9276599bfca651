"""Evaluates arithmetic on symbolic shapes at import, so that none is left at run time.

A value is known if it is a small constant, a ``relax.ShapeExpr`` (rank 1) or an integer expression (rank 0). A node
with known inputs evaluates to a known value, if its operator is Shape (version 25), Size or one of ``FUNCTIONS``. Known
values are integers, whatever their element type: exporters cast shapes to int32 and to floats, and back. Floats that
may not be whole, and arrays of more dimensions, are ``Elements``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import tvm
from onnx import TensorProto
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.sym import Analyzer

from packager.frontends.onnx.ops.operands import constant
from packager.frontends.onnx.ops.shapes import quotients
from packager.frontends.onnx.ops.shapes.quotients import PLACING, NotExactError, Quotient, quotient
from packager.frontends.onnx.ops.shapes.rules import FUNCTIONS, MAX_ELEMENTS, Known, objects
from packager.graph.dataflow import shape_of

# Operator -> indices of shape inputs that its converter accepts as symbolic.
SHAPE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Range": (0, 1, 2),
    "Tile": (1,),
    "Pad": (1,),
    "TopK": (1,),
    "DFT": (1,),
}


TYPES = ("int64", "int32", "bool")  # that shapes, and what is computed of them, have
BOUNDS = {name: np.iinfo(name) for name in ("int64", "int32")}


@dataclass(frozen=True)
class Elements:
    """A value of shape arithmetic that is no shape and no extent: of several dimensions, or with a ``Quotient``."""

    array: Known


def is_symbolic(value: Any) -> bool:
    """Tell whether a value is part of shape arithmetic rather than a tensor."""
    return value is not None and (isinstance(value, relax.ShapeExpr | Elements) or tvm.ir.is_prim_expr(value))


def compute(
    op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], analyzer: Analyzer
) -> Sequence[Any] | None:
    """Evaluate a node; None if its outputs are not known shapes, and it must be converted.

    ``analyzer`` has the bounds of the dims.
    """
    if op_type in ("Shape", "Size"):
        shape = _shape_of(inputs[0])
        if shape is None:
            return None
        if op_type == "Size":
            return [wrap(np.asarray(reduce(operator.mul, shape, 1), dtype=object), analyzer)]
        return [wrap(shape[attributes.get("start", 0) : attributes.get("end")], analyzer)]
    function = FUNCTIONS.get(op_type)
    if function is None:
        return None
    floats = any(is_symbolic(value) for value in inputs)  # others are no shapes
    operands = [None if value is None else known(value, attributes, floats=floats) for value in inputs]
    if any(value is not None and operand is None for value, operand in zip(inputs, operands, strict=True)):
        return None
    try:
        results = _evaluate(op_type, operands, attributes, analyzer)
    except NotExactError:
        return None
    results = results if isinstance(results, list) else [results]
    types = attributes["tvm_custom"]["types"]
    wrapped = [wrap(result, analyzer, dtype) for result, dtype in zip(results, types, strict=False)]
    return None if any(value is None for value in wrapped) else wrapped


def _evaluate(op_type: str, operands: list[Any], attributes: Mapping[str, Any], analyzer: Analyzer) -> Any:
    """Return the results of an operator of ``FUNCTIONS``. Raises NotExactError."""
    to_integer = attributes.get("to") in (TensorProto.INT64, TensorProto.INT32)
    whole = op_type in PLACING or not any(
        isinstance(e, Quotient) for operand in operands if operand is not None for e in operand.reshape(-1)
    )
    try:
        if whole:
            return FUNCTIONS[op_type](operands, attributes, analyzer)
    except NotExactError:
        if op_type != "Div" or "float" not in attributes["tvm_custom"]["types"][0]:
            raise
    found = quotients.compute(op_type, operands, to_integer, analyzer)
    if found is None:
        raise NotExactError
    return found


def _shape_of(value: Any) -> Known | None:
    if isinstance(value, Elements):
        return objects(value.array.shape)
    if isinstance(value, relax.ShapeExpr):
        return np.array([len(value.values)], dtype=object)
    shape = shape_of(value)
    return None if shape is None else objects(shape)


def known(value: Any, attributes: Mapping[str, Any], *, floats: bool = False) -> Known | None:
    """Return the elements of a shape, an extent or a small constant of integers; None for other values.

    With ``floats`` the constant may be of floats: integers, or quotients by small powers of two.
    """
    if isinstance(value, Elements):
        return value.array
    if isinstance(value, relax.ShapeExpr):
        return objects(value.values)
    array = None if tvm.ir.is_prim_expr(value) and not isinstance(value, GenericConst) else constant(value, attributes)
    if array is not None:
        if array.size > MAX_ELEMENTS:
            return None
        if floats and array.dtype.kind == "f":
            return quotients.fractions(array)
        return array.astype(object) if array.dtype.name in TYPES else None
    return objects([value]).reshape(()) if tvm.ir.is_prim_expr(value) else None


def known_integers(value: Any, attributes: Mapping[str, Any], what: str) -> Known:
    """Like ``known``. Raises ValueError for other values."""
    found = known(value, attributes)
    if found is None:
        raise ValueError(f"{what} is not constant: freeze it with --freeze")
    return found


def wrap(array: Known, analyzer: Analyzer, dtype: str = "int64") -> Any:
    """Return elements as a constant of ``dtype`` if all are numbers, else as a shape or an extent.

    None if they are no shape: too many, or beyond the type.
    """
    if any(isinstance(element, Quotient) for element in array.reshape(-1)):
        return Elements(array) if array.size <= MAX_ELEMENTS else None
    simplified = [e if isinstance(e, int) else analyzer.simplify(e) for e in array.reshape(-1)]
    elements = objects(simplified)
    if all(isinstance(element, int) for element in elements):
        if dtype in BOUNDS and not all(BOUNDS[dtype].min <= element <= BOUNDS[dtype].max for element in elements):
            return None  # computed as integers without end, where the model's wrap around
        return relax.const(elements.astype(dtype).reshape(array.shape), dtype)
    if array.size > MAX_ELEMENTS:
        return None
    if array.ndim > 1:
        return Elements(elements.reshape(array.shape))
    expressions = [tirx.IntImm("int64", e) if isinstance(e, int) else e for e in elements]
    return relax.ShapeExpr(expressions) if array.ndim == 1 else relax.prim_value(expressions[0])


def as_tensor(builder: Any, value: Any, dtype: str = "int64") -> Any:
    """Convert a value of shape arithmetic to a tensor at run time."""
    if isinstance(value, Elements):
        return _divided(builder, value.array, dtype)
    elements = value.values if isinstance(value, relax.ShapeExpr) else [value]
    parts = [builder.emit(relax.op.arange(element, element + 1, 1, "int64")) for element in elements]
    joint = parts[0] if len(parts) == 1 else builder.emit(relax.op.concat(parts, axis=0))
    joint = joint if dtype == "int64" else builder.emit(relax.op.astype(joint, dtype))
    return joint if isinstance(value, relax.ShapeExpr) else builder.emit(relax.op.reshape(joint, []))


def _divided(builder: Any, array: Known, dtype: str) -> Any:
    """Convert integers, expressions and quotients of any shape to a tensor."""
    parts = [quotient(element) for element in array.reshape(-1)]
    tops = as_tensor(builder, relax.ShapeExpr([tirx.IntImm("int64", 0) + part.numerator for part in parts]), dtype)
    if any(part.denominator > 1 for part in parts):
        bottoms = relax.const(np.array([part.denominator for part in parts], dtype))
        tops = builder.emit(relax.op.divide(tops, bottoms))
    return tops if array.ndim == 1 else builder.emit(relax.op.reshape(tops, list(array.shape)))

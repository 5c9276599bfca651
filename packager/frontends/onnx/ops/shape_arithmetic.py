"""Evaluates arithmetic on symbolic shapes at import, so that none is left at run time.

A value is known if it is a constant, a ``relax.ShapeExpr`` (rank 1) or an integer expression (rank 0). A node of one of
the operators here with known inputs evaluates to a known value. ONNX operators Shape (version 25), Size and those of
``FUNCTIONS``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from onnx import TensorProto
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.sym import Analyzer

from packager.frontends.onnx.ops.operands import constant
from packager.graph.dataflow import shape_of

# Elements are Python integers and TVM expressions.
Known = NDArray[Any]
# Larger tensors are not shapes.
MAX_ELEMENTS = 64
# Operator -> indices of shape inputs that its converter accepts as symbolic.
SHAPE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Range": (0, 1, 2),
    "Tile": (1,),
    "Pad": (1,),
}


def is_symbolic(value: Any) -> bool:
    """Tell whether a value is a shape or an extent rather than a tensor."""
    return value is not None and (isinstance(value, relax.ShapeExpr) or tvm.ir.is_prim_expr(value))


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
    if function is None or not any(is_symbolic(value) for value in inputs):
        return None
    operands = [None if value is None else known(value, attributes) for value in inputs]
    if any(value is not None and operand is None for value, operand in zip(inputs, operands, strict=True)):
        return None
    try:
        results = function(operands, attributes, analyzer)
    except _NotExactError:
        return None
    results = results if isinstance(results, list) else [results]
    if any(result.ndim > 1 or result.size > MAX_ELEMENTS for result in results):
        return None
    return [wrap(result, analyzer) for result in results]


def _shape_of(value: Any) -> Known | None:
    if isinstance(value, relax.ShapeExpr):
        return np.array([len(value.values)], dtype=object)
    shape = shape_of(value)
    return None if shape is None else _objects(shape)


def _objects(values: Sequence[Any]) -> Known:
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = int(value) if isinstance(value, tirx.IntImm | int | np.integer) else value
    return array


def known(value: Any, attributes: Mapping[str, Any]) -> Known | None:
    """Return the elements of a shape, an extent or a small integer constant; None for other values."""
    if isinstance(value, relax.ShapeExpr):
        return _objects(value.values)
    array = None if tvm.ir.is_prim_expr(value) and not isinstance(value, GenericConst) else constant(value, attributes)
    if array is not None:
        fits = array.dtype.kind in "iu" and array.size <= MAX_ELEMENTS
        return array.astype(object) if fits else None
    return _objects([value]).reshape(()) if tvm.ir.is_prim_expr(value) else None


def wrap(array: Known, analyzer: Analyzer) -> Any:
    """Return elements as a constant if all are integers, else as a shape or an extent."""
    simplified = [e if isinstance(e, int) else analyzer.simplify(e) for e in array.reshape(-1)]
    elements = _objects(simplified)
    if all(isinstance(element, int) for element in elements):
        return relax.const(elements.astype(np.int64).reshape(array.shape), "int64")
    expressions = [tirx.IntImm("int64", e) if isinstance(e, int) else e for e in elements]
    return relax.ShapeExpr(expressions) if array.ndim == 1 else relax.prim_value(expressions[0])


def as_tensor(builder: Any, value: Any) -> Any:
    """Convert a shape or an extent to an int64 tensor at run time."""
    elements = value.values if isinstance(value, relax.ShapeExpr) else [value]
    parts = [builder.emit(relax.op.arange(element, element + 1, 1, "int64")) for element in elements]
    joint = parts[0] if len(parts) == 1 else builder.emit(relax.op.concat(parts, axis=0))
    return joint if isinstance(value, relax.ShapeExpr) else builder.emit(relax.op.reshape(joint, []))


class _NotExactError(Exception):
    """The result is not exact for all sizes, or not representable in a shape."""


def _elementwise(function: Callable[[Any, Any], Any]) -> Callable[..., Known]:
    def apply(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
        return reduce(lambda a, b: np.asarray(np.frompyfunc(function, 2, 1)(a, b), dtype=object), operands)

    return apply


def _integers_or(plain: Callable[[Any, Any], Any], symbolic: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that is ``plain`` for two integers, else ``symbolic``."""
    return lambda a, b: (plain if isinstance(a, int) and isinstance(b, int) else symbolic)(a, b)


_min, _max = _integers_or(min, tirx.min), _integers_or(max, tirx.max)


def _division(function: Callable[[Any, Any], Any]) -> Callable[..., Known]:
    """Return a rule for Div or Mod, which truncate: as floordiv and floormod for nonnegative operands, other raise."""

    def apply(operands: list[Known], attributes: Mapping[str, Any], analyzer: Analyzer) -> Known:
        for operand, least in zip(operands, (0, 1), strict=True):
            for expr in operand.reshape(-1):
                if (expr if isinstance(expr, int) else analyzer.const_int_bound(expr).min_value) < least:
                    raise _NotExactError
        return _elementwise(function)(operands, attributes, analyzer)

    return apply


def _cast(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    if attributes["to"] != TensorProto.INT64:
        raise _NotExactError
    return operands[0]


def _axes(operands: list[Known], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = operands[1] if len(operands) > 1 and operands[1] is not None else attributes.get("axes")
    return None if given is None else tuple(_numbers(np.asarray(given, dtype=object)))


def _numbers(array: Known) -> list[int]:
    if not all(isinstance(element, int) for element in array.reshape(-1)):
        raise _NotExactError
    return [int(element) for element in array.reshape(-1)]


def _squeeze(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    return np.squeeze(operands[0], _axes(operands, attributes))


def _unsqueeze(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    return np.expand_dims(operands[0], _axes(operands, attributes) or ())


def _gather(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    indices = np.array(_numbers(operands[1]), np.int64).reshape(operands[1].shape)
    return np.asarray(np.take(operands[0], indices, attributes.get("axis", 0)), dtype=object)


def _slice(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    if len(operands) < 3:  # before version 10
        begins, ends = (list(attributes[name]) for name in ("starts", "ends"))
        axes, steps = list(attributes.get("axes", range(len(begins)))), [1] * len(begins)
    else:
        begins, ends = _numbers(operands[1]), _numbers(operands[2])
        rest = [*operands[3:], None, None][:2]
        axes = list(range(len(begins))) if rest[0] is None else _numbers(rest[0])
        steps = [1] * len(begins) if rest[1] is None else _numbers(rest[1])
    taken = operands[0]
    for begin, end, axis, step in zip(begins, ends, axes, steps, strict=True):
        last = None if step < 0 and end < -taken.shape[axis] else end
        taken = taken[tuple([slice(None)] * (axis % taken.ndim) + [slice(begin, last, step)])]
    return taken


def _reshape(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    return operands[0].reshape(_numbers(operands[1]))


def _split(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> list[Known]:
    count = attributes["tvm_custom"]["num_outputs"]
    given = operands[1] if len(operands) > 1 and operands[1] is not None else attributes.get("split")
    length = operands[0].shape[0]
    sizes = [-(-length // count)] * count if given is None else _numbers(np.asarray(given, dtype=object))
    return np.split(operands[0], np.cumsum(sizes)[:-1])


def _reduce(function: Callable[[Any, Any], Any], start: int | None) -> Callable[..., Known]:
    def apply(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
        if operands[0].ndim != 1 or (start is None and not operands[0].size):
            raise _NotExactError
        elements = list(operands[0]) if start is None else [start, *operands[0]]
        total = _objects([reduce(function, elements)])
        return total if attributes.get("keepdims", 1) else total.reshape(())

    return apply


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Identity": lambda operands, _attributes, _analyzer: operands[0],
    "Cast": _cast,
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Min": _elementwise(_min),
    "Max": _elementwise(_max),
    "Div": _division(_integers_or(operator.floordiv, tirx.floordiv)),
    "Mod": _division(_integers_or(operator.mod, tirx.floormod)),
    "Neg": lambda operands, _attributes, _analyzer: np.asarray(-operands[0], dtype=object),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "Slice": _slice,
    "Reshape": _reshape,
    "Split": _split,
    "Concat": lambda operands, attributes, _analyzer: np.concatenate(operands, attributes.get("axis", 0)),
    "ReduceProd": _reduce(operator.mul, 1),
    "ReduceSum": _reduce(operator.add, 0),
    "ReduceMax": _reduce(_max, None),
    "ReduceMin": _reduce(_min, None),
}

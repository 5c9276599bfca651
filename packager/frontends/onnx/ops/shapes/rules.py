"""The rules of shape arithmetic: ONNX operators on arrays of integers, booleans and integer expressions.

A rule takes the operands, the node's attributes and an analyzer with the bounds of the dims; it returns the results, or
raises ``NotExactError`` where no result holds for all sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from tvm import tirx
from tvm.sym import Analyzer

from packager.frontends.onnx.ops.shapes.quotients import NotExactError

# Elements are Python integers and booleans, and TVM expressions.
Known = NDArray[Any]
# Larger tensors are not shapes.
MAX_ELEMENTS = 64
MAX_EXTENT = 2**40
_TYPES = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE)


def objects(values: Sequence[Any]) -> Known:
    """Return a vector of Python integers and expressions."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = int(value) if isinstance(value, tirx.IntImm | int | np.integer) else value
    return array


def _elementwise(function: Callable[[Any, Any], Any]) -> Callable[..., Known]:
    def apply(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
        return reduce(lambda a, b: np.asarray(np.frompyfunc(function, 2, 1)(a, b), dtype=object), operands)

    return apply


def _integers_or(plain: Callable[[Any, Any], Any], symbolic: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that is ``plain`` for two integers, else ``symbolic``."""
    return lambda a, b: (plain if isinstance(a, int) and isinstance(b, int) else symbolic)(a, b)


_min, _max = _integers_or(min, tirx.min), _integers_or(max, tirx.max)
_remainder = _integers_or(operator.mod, tirx.floormod)


def _division(function: Callable[[Any, Any], Any]) -> Callable[..., Known]:
    """Return a rule for Div, which truncates: as floordiv for nonnegative operands, others raise.

    A quotient of floats must be an integer.
    """

    def apply(operands: list[Known], attributes: Mapping[str, Any], analyzer: Analyzer) -> Known:
        for operand, least in zip(operands, (0, 1), strict=True):
            for expr in operand.reshape(-1):
                if (expr if isinstance(expr, int) else analyzer.const_int_bound(expr).min_value) < least:
                    raise NotExactError
        if "float" in attributes["tvm_custom"]["types"][0]:
            for rest in _elementwise(operator.mod)(operands, attributes, analyzer).reshape(-1):
                if not (rest == 0 if isinstance(rest, int) else analyzer.can_prove(rest == 0)):
                    raise NotExactError
        return _elementwise(function)(operands, attributes, analyzer)

    return apply


def _at_least(expr: Any, analyzer: Analyzer) -> int:
    """Return a lower bound. Raises NotExactError if there is none to compute with."""
    least = expr if isinstance(expr, int) else int(analyzer.const_int_bound(expr).min_value)
    if least < -MAX_EXTENT:
        raise NotExactError
    return least


def _mod(operands: list[Known], attributes: Mapping[str, Any], analyzer: Analyzer) -> Known:
    """Return the remainder with the sign of the divisor: of operands below 0 after a multiple of the divisor is added.

    Shape expressions truncate, which is the same where nothing is negative.
    """
    truncates = bool(attributes.get("fmod", 0))

    def remainder(a: Any, b: Any) -> Any:
        least = _at_least(a, analyzer)
        if least >= 0 and _at_least(b, analyzer) > 0:
            return _remainder(a, b)
        if truncates or not isinstance(b, int) or b == 0:
            raise NotExactError
        if b < 0:
            return 0 - remainder(0 - a, -b)
        return _remainder(a + (-least + b - 1) // b * b, b)

    return np.asarray(np.frompyfunc(remainder, 2, 1)(*operands), dtype=object)


def _cast(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    if attributes["to"] not in _TYPES:
        raise NotExactError
    return np.asarray(np.frompyfunc(lambda e: int(e) if isinstance(e, bool) else e, 1, 1)(operands[0]), dtype=object)


def _comparison(holds: Callable[[Any, Any], Any], fails: Callable[[Any, Any], Any]) -> Callable[..., Known]:
    """Return a rule for a comparison, and its opposite: it must be decided for all sizes."""

    def apply(operands: list[Known], _attributes: Mapping[str, Any], analyzer: Analyzer) -> Known:
        def compare(a: Any, b: Any) -> bool:
            if isinstance(a, int) and isinstance(b, int):
                return bool(holds(a, b))
            if analyzer.can_prove(holds(a, b)):
                return True
            if analyzer.can_prove(fails(a, b)):
                return False
            raise NotExactError

        return np.asarray(np.frompyfunc(compare, 2, 1)(*operands), dtype=object)

    return apply


def _logical(function: Callable[..., bool]) -> Callable[..., Known]:
    def apply(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
        return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), dtype=object)

    return apply


def _constant_of_shape(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    value = attributes.get("value")
    filler = np.zeros(1, np.int64) if value is None else np.asarray(value)
    shape = _numbers(operands[0])
    if filler.dtype.kind not in "iub" or prod(shape) > MAX_ELEMENTS:
        raise NotExactError
    return np.full(shape, filler.reshape(-1)[0].item(), dtype=object)


def _expand(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    shape = np.broadcast_shapes(operands[0].shape, tuple(_numbers(operands[1])))
    if prod(shape) > MAX_ELEMENTS:
        raise NotExactError
    return np.broadcast_to(operands[0], shape)


def _range(operands: list[Known], _attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    start, limit, step = (_numbers(operand)[0] for operand in operands)
    if step == 0 or (limit - start) // step > MAX_ELEMENTS:
        raise NotExactError
    return objects(list(range(start, limit, step)))


def _axes(operands: list[Known], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = operands[1] if len(operands) > 1 and operands[1] is not None else attributes.get("axes")
    return None if given is None else tuple(_numbers(np.asarray(given, dtype=object)))


def _numbers(array: Known) -> list[int]:
    if not all(isinstance(element, int) for element in array.reshape(-1)):
        raise NotExactError
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


def _reshape(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    shape = _numbers(operands[1])
    if not attributes.get("allowzero", 0):  # 0 keeps an extent
        shape = [operands[0].shape[i] if extent == 0 else extent for i, extent in enumerate(shape)]
    return operands[0].reshape(shape)


def _split(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> list[Known]:
    count = attributes["tvm_custom"]["num_outputs"]
    given = operands[1] if len(operands) > 1 and operands[1] is not None else attributes.get("split")
    axis = attributes.get("axis", 0)
    length = operands[0].shape[axis]
    sizes = [-(-length // count)] * count if given is None else _numbers(np.asarray(given, dtype=object))
    return np.split(operands[0], np.cumsum(sizes)[:-1], axis)


def _one_hot(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
    indices, (depth, *_), values = _numbers(operands[0]), _numbers(operands[1]), operands[2]
    if depth > MAX_ELEMENTS or len(indices) * depth > MAX_ELEMENTS:
        raise NotExactError
    rows = objects([values[1 if place in (at, at + depth) else 0] for at in indices for place in range(depth)])
    return np.moveaxis(rows.reshape(*operands[0].shape, depth), -1, attributes.get("axis", -1))


def _reduce(function: Callable[[Any, Any], Any], start: int | None) -> Callable[..., Known]:
    def apply(operands: list[Known], attributes: Mapping[str, Any], _analyzer: Analyzer) -> Known:
        if operands[0].ndim != 1 or (start is None and not operands[0].size):
            raise NotExactError
        elements = list(operands[0]) if start is None else [start, *operands[0]]
        total = objects([reduce(function, elements)])
        return total if attributes.get("keepdims", 1) else total.reshape(())

    return apply


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Identity": lambda operands, _attributes, _analyzer: operands[0],
    "Cast": _cast,
    **dict.fromkeys(("Floor", "Ceil", "Round"), lambda operands, _attributes, _analyzer: operands[0]),
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Equal": _comparison(operator.eq, lambda a, b: tirx.any(a < b, a > b)),
    "Less": _comparison(operator.lt, operator.ge),
    "LessOrEqual": _comparison(operator.le, operator.gt),
    "Greater": _comparison(operator.gt, operator.le),
    "GreaterOrEqual": _comparison(operator.ge, operator.lt),
    "And": _logical(lambda a, b: a and b),
    "Or": _logical(lambda a, b: a or b),
    "Not": _logical(lambda a: not a),
    "Where": _logical(lambda chosen, a, b: a if chosen else b),
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Range": _range,
    "Min": _elementwise(_min),
    "Max": _elementwise(_max),
    "Div": _division(_integers_or(operator.floordiv, tirx.floordiv)),
    "Mod": _mod,
    "Neg": lambda operands, _attributes, _analyzer: np.asarray(-operands[0], dtype=object),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "Slice": _slice,
    "Reshape": _reshape,
    "Split": _split,
    "OneHot": _one_hot,
    "Concat": lambda operands, attributes, _analyzer: np.concatenate(operands, attributes.get("axis", 0)),
    "ReduceProd": _reduce(operator.mul, 1),
    "ReduceSum": _reduce(operator.add, 0),
    "ReduceMax": _reduce(_max, None),
    "ReduceMin": _reduce(_min, None),
}

"""ONNX operators on integers over the dims: each takes the operands' values as object arrays, and the attributes.

None is what a function gives that cannot tell its result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

Array = NDArray[Any]


def _axes(values: Sequence[Array | None], attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the axes of ``Squeeze`` and ``Unsqueeze``, which once were an attribute."""
    given = values[1] if len(values) > 1 else attributes.get("axes")
    return None if given is None else tuple(int(axis) for axis in given)


def _gather(values: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    data, indices = values
    if not all(isinstance(index, int) for index in indices.flat):
        return None
    places = indices.astype(np.int64)
    return _array(np.take(data, places, axis=attributes.get("axis", 0)))


def slice_integers(values: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    """Return a part of a vector of integers."""
    if len(values) < 3:
        values = [values[0], *(np.array(attributes[name], object) for name in ("starts", "ends"))]
    data, starts, ends, *rest = (value for value in values if value is not None)
    steps = rest[1] if len(rest) > 1 else [1]
    bounds = [*starts, *ends, *steps]
    if data.ndim != 1 or len(starts) != 1 or not all(isinstance(bound, int) for bound in bounds):
        return None
    return data[slice(int(starts[0]), int(ends[0]), int(steps[0]))]


def _divide(values: Sequence[Array], _attributes: Mapping[str, Any]) -> Array | None:
    """Divide extents, which are not negative: so rounding down is what ONNX wants."""

    def quotient(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return int(a / b)
        return tirx.floordiv(expression(a), expression(b))

    divisors = values[1]
    if not all(isinstance(divisor, int) and divisor > 0 for divisor in divisors.flat):
        return None
    return _array(np.frompyfunc(quotient, 2, 1)(*values))


def _pairwise(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    apply = np.frompyfunc(function, 2, 1)
    return lambda values, _attributes: _array(reduce(apply, values))


def _pick(of_numbers: Callable[..., Any], ofexpressions: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def pick(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return of_numbers(a, b)
        return ofexpressions(expression(a), expression(b))

    return pick


def expression(extent: Any) -> Any:
    """Return an extent as an expression of TVM."""
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent


def _cast(values: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    return values[0] if str(attributes.get("to")) in ("7", "int64") else None


def reshape(values: Sequence[Array], _attributes: Mapping[str, Any]) -> Array | None:
    """Return integers in another shape."""
    if not all(isinstance(extent, int) for extent in values[1].flat):
        return None
    return values[0].reshape([int(extent) for extent in values[1].flat])


def _squeeze(values: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return _array(np.squeeze(values[0], _axes(values, attributes)))


def _unsqueeze(values: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    return _array(np.expand_dims(values[0], _axes(values, attributes) or ()))


def _array(value: Any) -> Array:
    """Return what numpy gives as an object array: it makes a bare object of one of no axes."""
    if isinstance(value, np.ndarray):
        return value
    array = np.empty((), object)
    array[()] = value
    return array


FUNCTIONS: Mapping[str, Callable[..., Array | None]] = {
    "Add": _pairwise(operator.add),
    "Sub": _pairwise(operator.sub),
    "Mul": _pairwise(operator.mul),
    "Div": _divide,
    "Max": _pairwise(_pick(max, tirx.Max)),
    "Min": _pairwise(_pick(min, tirx.Min)),
    "Cast": _cast,
    "Concat": lambda values, _attributes: np.concatenate(values),
    "Gather": _gather,
    "Identity": lambda values, _attributes: values[0],
    "ReduceProd": lambda values, _attributes: _array(reduce(operator.mul, values[0].flat, 1)).reshape(1),
    "Slice": slice_integers,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}

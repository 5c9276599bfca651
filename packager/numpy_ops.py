"""Evaluate a Relax function of weights with numpy, operator by operator.

Compiling a function for the build machine costs tens of milliseconds for each operator and shape; moving weights around
costs numpy next to nothing. Only operators that numpy computes exactly as TVM does are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.ir import GenericConst

Array = NDArray[Any]


def _axes(call: relax.Call) -> tuple[int, ...] | None:
    return None if call.attrs.axes is None else tuple(int(axis) for axis in call.attrs.axes)


def _shape(call: relax.Call) -> tuple[int, ...]:
    return tuple(int(extent) for extent in call.ty.shape.values)


OPERATORS: dict[str, Callable[[relax.Call, list[Array]], Array]] = {
    "relax.reshape": lambda call, a: a[0].reshape(_shape(call)),
    "relax.permute_dims": lambda call, a: a[0].transpose(_axes(call)),
    "relax.expand_dims": lambda call, a: a[0].reshape(_shape(call)),
    "relax.squeeze": lambda call, a: a[0].reshape(_shape(call)),
    "relax.broadcast_to": lambda call, a: np.broadcast_to(a[0], _shape(call)),
    "relax.add": lambda _, a: a[0] + a[1],
    "relax.subtract": lambda _, a: a[0] - a[1],
    "relax.multiply": lambda _, a: a[0] * a[1],
    "relax.divide": lambda _, a: a[0] / a[1],
    "relax.negative": lambda _, a: -a[0],
    "relax.sqrt": lambda _, a: np.sqrt(a[0]),
}
FLOATING_ONLY = {"relax.divide"}  # integers divide by truncation, which numpy does not


def evaluate(function: relax.Function, values: list[Array]) -> list[Array] | None:
    """Return the fields of the tuple that ``function`` gives for a tuple of ``values``.

    Returns None if it has an operator that is not here.
    """
    known: dict[int, Any] = {function.params[0].__chandle__(): tuple(values)}
    for block in function.body.blocks:
        for binding in block.bindings:
            result = _evaluate(binding.value, known)
            if result is None:
                return None
            known[binding.var.__chandle__()] = result
    fields = _evaluate(function.body.body, known)
    return None if fields is None else [np.ascontiguousarray(field) for field in fields]


def _evaluate(value: Any, known: dict[int, Any]) -> Any | None:
    match value:
        case relax.TupleGetItem():
            return known[value.tuple_value.__chandle__()][value.index]
        case relax.Tuple():
            fields = [_evaluate(field, known) for field in value.fields]
            return None if any(field is None for field in fields) else tuple(fields)
        case GenericConst():
            return np.asarray(value.value.numpy())
        case relax.Call():
            return _call(value, known)
    return known.get(value.__chandle__())


def _call(call: relax.Call, known: dict[int, Any]) -> Array | None:
    name = getattr(call.op, "name", "")
    static = isinstance(getattr(call.ty, "shape", None), relax.ShapeExpr) and all(
        isinstance(extent, tirx.IntImm) for extent in call.ty.shape.values
    )
    operands = [a for a in call.args if not isinstance(a, relax.ShapeExpr)]
    arguments = [array for array in (_evaluate(a, known) for a in operands) if isinstance(array, np.ndarray)]
    if name not in OPERATORS or not static or len(arguments) != len(operands):
        return None
    if name in FLOATING_ONLY and arguments[0].dtype.kind != "f":
        return None
    result = np.asarray(OPERATORS[name](call, arguments))
    return result if result.dtype.name == str(call.ty.dtype) else None

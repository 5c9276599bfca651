"""Evaluates Relax operators on weights with numpy.

Compiling for the build machine costs tens of milliseconds per operator and shape; numpy is faster, and returns views
where it can. Only operators with results identical to TVM's are included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.bundle.arrays import Array
from packager.bundle.dtypes import HALVES, storage_dtype
from packager.graph import array_views as views
from packager.graph.array_views import reshape_tracked
from packager.graph.block_weights import DEQUANTIZE, dequantized, format_of
from packager.graph.dataflow import axes_of, bindings_of
from packager.graph.identity import IdentityMap


def _shape(call: relax.Call) -> tuple[int, ...]:
    return tuple(int(extent) for extent in call.ty.shape.values)


def _arange(call: relax.Call) -> Array | None:
    if not all(isinstance(argument, tirx.IntImm) for argument in call.args):
        return None
    return np.arange(*(int(argument) for argument in call.args), dtype=str(call.ty.dtype))


def _shape_to_tensor(call: relax.Call, *known: Array) -> Array | None:
    """Return a shape as an array; it is inline in the call, or already known."""
    extents = call.args[0].values if isinstance(call.args[0], relax.ShapeExpr) else ()
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return known[0] if known else np.array([int(extent) for extent in extents], np.int64)


def _take(call: relax.Call, array: Array, indices: Array) -> Array | None:
    return views.take(array, indices, None if call.attrs.axis is None else int(call.attrs.axis))


def _astype(call: relax.Call, array: Array) -> Array | None:
    dtype = storage_dtype(str(call.ty.dtype))
    kinds = {"f" if each.name in HALVES else each.kind for each in (array.dtype, dtype)}  # bfloat16's own is "V"
    exact = kinds <= {"i", "u"} or kinds == {"f"} or array.dtype.kind == "b"
    return array.astype(dtype) if exact else None


def _dequantize(call: relax.Call, array: Array, scale: Array, zero: Array) -> Array | None:
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 4 or scale.dtype != np.float32:
        return None
    shape = [1] * array.ndim
    if array.ndim:
        shape[int(call.attrs.axis) % array.ndim] = -1
    scale, zero = (a.reshape(()) if a.size == 1 else a.reshape(shape) for a in (scale, zero))
    return (array.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale


def _dequantize_blocks(call: relax.Call, packed: Array, scales: Array, zeros: Array) -> Array:
    return dequantized(packed, scales, zeros, format_of(call.attrs))


def _clip(call: relax.Call, array: Array) -> Array | None:
    low, high = (float(bound.value) for bound in call.args[1:])
    return np.clip(array, array.dtype.type(low), array.dtype.type(high)) if array.dtype.kind == "f" else None


def _full(call: relax.Call, *values: Array) -> Array:
    return np.full(_shape(call), values[-1], str(call.ty.dtype))


def _strided_slice(call: relax.Call, array: Array) -> Array | None:
    lists = [a.fields for a in call.args[1:] if isinstance(a, relax.Tuple)]
    if not all(isinstance(number, tirx.IntImm) for fields in lists for number in fields):
        return None
    axes, begins, ends, *strides = ([int(number) for number in fields] for fields in lists)
    steps = strides[0] if strides else [1] * len(axes)
    if min(steps, default=1) < 1:
        return None
    key = [slice(None)] * array.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        key[axis] = slice(begin, end, step)
    return array[tuple(key)]


def _pad(call: relax.Call, array: Array) -> Array | None:
    widths = [int(width) for width in call.attrs.pad_width]
    if call.attrs.pad_mode != "constant" or min(widths, default=0) < 0:
        return None
    sides = list(zip(widths[::2], widths[1::2], strict=True))
    return np.pad(array, sides, constant_values=float(call.attrs.pad_value))


OPERATORS: dict[str, Callable[..., Array | None]] = {
    "relax.reshape": lambda call, a: reshape_tracked(a, _shape(call)),
    "relax.permute_dims": lambda call, a: a.transpose(axes_of(call)),
    "relax.expand_dims": lambda call, a: reshape_tracked(a, _shape(call)),
    "relax.squeeze": lambda call, a: reshape_tracked(a, _shape(call)),
    "relax.broadcast_to": lambda call, a: np.broadcast_to(a, _shape(call)),
    "relax.strided_slice": _strided_slice,
    "relax.concat": lambda call, *arrays: np.concatenate(arrays, int(call.attrs.axis or 0)) if arrays else None,
    "relax.nn.pad": _pad,
    "relax.take": _take,
    "relax.arange": _arange,
    "relax.shape_of": lambda _, a: np.array(a.shape, np.int64),
    "relax.shape_to_tensor": _shape_to_tensor,
    "relax.astype": _astype,
    "relax.dequantize": _dequantize,
    DEQUANTIZE: _dequantize_blocks,
    "relax.add": lambda _, a, b: a + b,
    "relax.subtract": lambda _, a, b: a - b,
    "relax.multiply": lambda _, a, b: a * b,
    "relax.divide": lambda _, a, b: a / b,
    "relax.negative": lambda _, a: -a,
    "relax.clip": _clip,
    "relax.sqrt": lambda _, a: np.sqrt(a),
    "relax.isnan": lambda _, a: np.isnan(a),
    "relax.full": _full,
    "relax.less": lambda _, a, b: a < b,
    "relax.less_equal": lambda _, a, b: a <= b,
    "relax.greater": lambda _, a, b: a > b,
    "relax.greater_equal": lambda _, a, b: a >= b,
    "relax.equal": lambda _, a, b: a == b,
    "relax.logical_and": lambda _, a, b: np.logical_and(a, b),
    "relax.logical_or": lambda _, a, b: np.logical_or(a, b),
    "relax.logical_not": lambda _, a: np.logical_not(a),
    "relax.where": lambda _, condition, a, b: np.asarray(np.where(condition, a, b)),
}
FLOATING_ONLY = {"relax.divide"}  # integer division truncates in TVM, not in numpy


def evaluate(function: relax.Function, values: list[Array]) -> list[Array | None]:
    """Evaluate ``function``, which maps a tuple of ``values`` to a tuple; return its fields.

    A field that depends on an unsupported operator is None.
    """
    known: IdentityMap[Any] = IdentityMap([(function.params[0], tuple(values))])
    for binding in bindings_of(function):
        known[binding.var] = _evaluate(binding.value, known)
    fields: tuple[Array | None, ...] = _evaluate(function.body.body, known) or ()
    return list(fields)


def _evaluate(value: Any, known: IdentityMap[Any]) -> Any | None:
    match value:
        case relax.TupleGetItem():
            whole = known.get(value.tuple_value)
            return None if whole is None else whole[value.index]
        case relax.Tuple():
            return tuple(_evaluate(field, known) for field in value.fields)
        case GenericConst():
            return np.asarray(value.value.numpy())
        case relax.Call():
            return evaluate_call(value, known)
    return known.get(value)


def evaluate_call(call: relax.Call, known: IdentityMap[Any]) -> Array | None:
    """Evaluate a call; None if an operand is not in ``known``, or the operator is unsupported."""
    name = getattr(call.op, "name", "")
    shape = call.ty if name == "relax.shape_of" else getattr(call.ty, "shape", None)
    extents = getattr(shape, "values", None)
    static = extents is not None and all(isinstance(extent, tirx.IntImm) for extent in extents)
    given = call.args[0].fields if name == "relax.concat" and isinstance(call.args[0], relax.Tuple) else call.args
    operands = [a for a in given if isinstance(a, relax.Var | GenericConst | relax.Call)]
    arguments = [array for array in (_evaluate(a, known) for a in operands) if isinstance(array, np.ndarray)]
    if name not in OPERATORS or not static or len(arguments) != len(operands):
        return None
    if name in FLOATING_ONLY and arguments[0].dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):  # NaN and infinities are legitimate values of the model
        result = OPERATORS[name](call, *arguments)
    if result is None or name == "relax.shape_of":
        return result
    return np.asarray(result) if result.dtype.name == str(call.ty.dtype) else None

"""Use +-inf as the identity of float max/min, and index 0 as that of argmax/argmin.

TVM uses the largest finite value, which is wrong for rows that are all -inf (masks), and -1.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

from packager.graph.dataflow import operator_of
from packager.ir.pattern_kinds import SUMS


def _register(combine: Callable[[Any, Any], Any], identity: float) -> None:
    """Register the reducer with TVM, whose cross-thread reductions accept registered ones only.

    TVM's registry is destroyed after the Python interpreter, when Python functions can no longer be released; so their
    reference counts are raised to keep them alive forever.
    """

    def combined(left: Any, right: Any) -> list[Any]:
        return [combine(left[0], right[0])]

    def identities(values: Any) -> list[Any]:
        dtype = str(values[0].ty)
        return [tirx.const(identity if "float" in dtype else 0, dtype)]

    functions = [tvm_ffi.convert(combined), tvm_ffi.convert(identities)]
    for function in functions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, *functions)


_register(tirx.max, -math.inf)
_register(tirx.min, math.inf)


def reduced_shape(shape: Sequence[Any], axes: Container[int], keepdims: bool) -> list[Any]:
    """Return the extents of a reduction along axes."""
    return [1 if axis in axes else extent for axis, extent in enumerate(shape) if keepdims or axis not in axes]


def kept_indices(index: Sequence[Any], axes: Container[int], keepdims: bool) -> Iterator[Any]:
    """Return the indices of an element of a reduction along the axes that are kept."""
    return (i for axis, i in enumerate(index) if not keepdims or axis not in axes)


def legalize_min_max(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``max`` or ``min``."""
    name = operator_of(call)
    combine, bound, infinity = (
        (tirx.max, tirx.min_value, -math.inf) if name == "max" else (tirx.min, tirx.max_value, math.inf)
    )

    def combined(left: Any, right: Any) -> Any:
        return combine(left, right)

    def identity(ty: Any) -> Any:
        return tirx.const(infinity, str(ty)) if "float" in str(ty) else bound(str(ty))

    reducer = te.comm_reducer(combined, identity, name=name)

    def compute(operand: Any) -> Any:
        is_bool = operand.dtype == "bool"
        data = topi.cast(operand, "int8") if is_bool else operand
        rank = len(data.shape)
        axes = range(rank) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
        reduced = {axis: te.reduce_axis((0, data.shape[axis]), name=f"k{axis}") for axis in axes}
        keepdims = bool(call.attrs.keepdims)
        shape = reduced_shape(data.shape, reduced, keepdims)

        def element(*indices: Any) -> Any:
            free = kept_indices(indices, reduced, keepdims)
            position = [reduced[axis] if axis in reduced else next(free) for axis in range(rank)]
            return reducer(data(*position), axis=list(reduced.values()))

        result = te.compute(shape, element, name=name)
        return topi.cast(result, "bool") if is_bool else result

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)


def legalize_arg(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``argmax`` or ``argmin``. Where all elements are the least of their type TVM's index is -1."""
    find = topi.argmax if operator_of(call) == "argmax" else topi.argmin

    def compute(operand: Any) -> Any:
        found = find(operand, call.attrs.axis, call.attrs.keepdims)
        return te.compute(found.shape, lambda *i: tirx.max(found(*i), tirx.const(0, found.dtype)), name="index")

    fusable = {"op_pattern": SUMS}
    return builder.call_te(compute, call.args[0], primfunc_name_hint=operator_of(call), primfunc_attrs=fusable)

"""Converters of reductions that TVM's importer lacks or computes differently.

Without axes and with ``noop_with_empty_axes`` a reduction applies to each element: ReduceL1 is |x|, ReduceLogSum log x.
Integers have means, norms and logarithms too, which are truncated. Squares and exponentials of half precision are
summed in float32: those above 65504 would be infinite. ONNX operators ReduceL1 and the like (version 18).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.frontends.onnx.ops.operands import Convert, Converter, constant, dtype_of, optional

# What a reduction without axes does to an element.
OF_ONE: Mapping[str, Callable[[Any, Any], Any]] = {
    "ReduceL1": lambda _emit, x: relax.op.abs(x),
    "ReduceL2": lambda _emit, x: relax.op.abs(x),
    "ReduceSumSquare": lambda _emit, x: relax.op.multiply(x, x),
    "ReduceLogSum": lambda _emit, x: relax.op.log(x),
    "ReduceLogSumExp": lambda emit, x: relax.op.log(emit(relax.op.exp(x))),
}
FRACTIONS = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")  # of integers
WIDENED = ("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")  # of half precision


def _reduction(operator: str) -> Converter:
    def converted(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
        data, dtype = inputs[0], dtype_of(inputs[0])
        axes = _axes(inputs, attributes)
        elements = axes == [] and bool(attributes.get("noop_with_empty_axes", 0))
        wide = _wide(operator, dtype)
        stable = operator == "ReduceLogSumExp" and axes is not None
        if not (elements and operator in OF_ONE) and not wide and not stable:
            return convert(operator, list(inputs), attributes)
        if wide:
            data = builder.emit(relax.op.astype(data, wide))
        if elements and operator in OF_ONE:
            result = OF_ONE[operator](builder.emit, data)
        elif stable:
            result = _log_sum_exp(builder.emit, data, axes or None, bool(attributes.get("keepdims", 1)))
        else:
            result = convert(operator, [data, *inputs[1:]], attributes)
        return relax.op.astype(builder.emit(result), dtype) if wide else result

    return converted


def _wide(operator: str, dtype: str) -> str:
    """Return the element type in which a reduction is computed, if that is another; else nothing."""
    if dtype in HALVES:
        return "float32" if operator in WIDENED else ""
    return "float64" if operator in FRACTIONS and not dtype.startswith("float") else ""


def _axes(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[int] | None:
    """Return the axes, [] if there are none, None if they are not constant."""
    given = optional(inputs, 1)
    if given is None:
        return [int(axis) for axis in attributes.get("axes") or ()]
    value = constant(given, attributes)
    return None if value is None else [int(axis) for axis in value.reshape(-1)]


def _log_sum_exp(emit: Callable[[Any], Any], data: Any, axes: list[int] | None, keepdims: bool) -> Any:
    """Return log(sum(exp(x - m))) + m, where m is the maximum, 0 if that is infinite."""
    dtype = dtype_of(data)
    most = emit(relax.op.max(data, axes, True))
    infinite = emit(relax.op.equal(emit(relax.op.abs(most)), relax.const(np.inf, dtype)))
    shift = emit(relax.op.where(infinite, relax.const(0, dtype), most))
    total = emit(relax.op.sum(emit(relax.op.exp(emit(relax.op.subtract(data, shift)))), axes, True))
    result = emit(relax.op.add(emit(relax.op.log(total)), shift))
    return result if keepdims else relax.op.squeeze(result, axes or list(range(data.ty.ndim)))


CONVERTERS: Mapping[str, Converter] = {
    **{name: _reduction(name) for name in dict.fromkeys((*OF_ONE, *FRACTIONS))},
}

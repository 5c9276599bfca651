"""Converts matmuls and convolutions of quantized operands to 8-bit integers with int32 accumulation, and the zero-point
correction."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.rewrite import rebuild_call
from packager.transforms.quantize.arithmetic import LARGEST, Emitter, as_unsigned, in_range
from packager.transforms.quantize.values import NO_BOUNDS, Linear, Quantized, Term, compact, is_zero, union

BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class _Sums:
    """An integer product: its call, the per-channel sums of the weights, their scales, and an upper bound on
    magnitudes."""

    call: Any
    totals: Array
    scale: Array
    limit: float


def convolution(emitter: Emitter, variable: Any, call: relax.Call) -> Linear | None:
    """Return an integer convolution of one to three dimensions, or None if its operands are not quantized suitably.

    An int32 result is emitted.
    """
    operands = _operands(emitter, call)
    attrs, axes = call.attrs, call.args[0].ty.ndim - 2
    image = "DHW"[-axes:] if axes > 1 else "W"
    plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (f"NC{image}", f"OI{image}", f"NC{image}")
    if axes != 2 and not emitter.unsigned:  # of GPUs
        return None
    if operands is None or not plain or not isinstance(call.args[0].ty.shape, relax.ShapeExpr):
        return None
    data, weight = operands
    weights = _weights(emitter, weight)
    scale, ones = compact(weight.scale), (1,) * axes
    if weights is None or scale.shape not in ((), (weight.value.ty.shape.values[0], 1, *ones)):
        return None
    value, padding = data.value, [int(extent) for extent in attrs.padding]
    if any(padding) and not is_zero(data.zero):
        if not isinstance(data.zero, np.ndarray):
            return None
        sides = itertools.chain.from_iterable(zip(padding[:axes], padding[axes:], strict=True))
        value = emitter.emit(relax.op.nn.pad(value, [0, 0, 0, 0, *sides], pad_value=float(data.zero.item())))
        padding = [0] * len(padding)
    constant, array = weights
    window = tuple(range(1, axes + 2))
    totals = array.astype(np.int64).sum(axis=window).reshape(1, -1, *ones)
    result = rebuild_call(call, value, constant, padding=padding, out_dtype="int32")
    sums = _Sums(result, totals, scale.reshape((1, -1, *ones) if scale.ndim else ()), _largest(data, array, window))
    return _corrected(emitter, variable, sums, data, weight)


def matmul(emitter: Emitter, variable: Any, call: relax.Call) -> Linear | None:
    """Return an integer matmul, or None if its operands are not quantized suitably. An int32 result is emitted."""
    operands = _operands(emitter, call)
    ranks = [argument.ty.ndim for argument in call.args]
    if operands is None or min(ranks) < 2:
        return None
    data, weight = operands
    weights = _weights(emitter, weight)
    if weights is None:
        return None
    constant, array = weights
    scale = compact(weight.scale)
    if any(extent != 1 for extent in array.shape[:-2]) or any(extent != 1 for extent in scale.shape[:-1]):
        return None
    totals = array.astype(np.int64).sum(axis=-2).reshape(-1)
    result = rebuild_call(call, data.value, constant, out_dtype="int32")
    sums = _Sums(result, totals, scale.reshape(-1) if scale.ndim else scale, _largest(data, array, (-2,)))
    return _corrected(emitter, variable, sums, data, weight)


def _largest(data: Quantized, array: Array, axes: tuple[int, ...]) -> float:
    """Return an upper bound on the magnitude of the accumulators."""
    return float(np.abs(array.astype(np.int32)).sum(axis=axes, dtype=np.int64).max(initial=0)) * LARGEST[data.stored]


def _operands(emitter: Emitter, call: relax.Call) -> tuple[Quantized, Quantized] | None:
    """Return per-tensor quantized 8-bit data and constant 8-bit weights, or None."""
    data, weight = (emitter.value(argument) for argument in call.args)
    if not isinstance(data, Quantized) or not isinstance(weight, Quantized) or data.dtype != weight.dtype:
        return None
    if data.array is not None or weight.array is None or data.scale.size != 1:
        return None
    if isinstance(data.zero, np.ndarray) and data.zero.size != 1:
        return None
    if data.stored not in BYTES or weight.stored not in BYTES:
        return None
    return as_unsigned(emitter, data) if emitter.unsigned else data, weight


def _weights(emitter: Emitter, weight: Quantized) -> tuple[Any, Array] | None:
    """Return weights as int8 with zero point 0, an expression and its value; None if they do not fit."""
    assert weight.array is not None
    if not isinstance(weight.zero, np.ndarray):
        return None
    if weight.stored == "int8" and is_zero(weight.zero):
        if isinstance(weight.value, relax.Var):
            return weight.value, weight.array
        return emitter.constants.make(weight.array, "weight", weight.sources), weight.array
    centered = weight.array.astype(np.int32) - weight.zero
    limits = np.iinfo(np.int8)
    if centered.size and centered.min() >= limits.min and centered.max() <= limits.max:
        array = centered.astype(np.int8)
        return emitter.constants.make(array, f"{weight.sources[0]}.int8", weight.sources), array
    return None


def _corrected(emitter: Emitter, variable: Any, product: _Sums, data: Quantized, weight: Quantized) -> Linear | None:
    """Apply the zero-point correction; emit the result if the model computes in int32."""
    emit, name = emitter.emit, variable.name
    sources = union(data.sources, weight.sources)
    stem = weight.sources[0] if weight.sources else "weight"
    if isinstance(data.zero, np.ndarray):
        whole = in_range(-product.totals * int(data.zero.item()))
        if whole is None:
            return None
        if data.dtype == "float32":
            factor = data.scale.astype(np.float64) * product.scale.astype(np.float64)
            term = Term(emit(product.call, name), factor, product.limit, whole)
            return Linear((term,), np.zeros(()), NO_BOUNDS, sources)
        sums = emit(product.call, "" if whole.any() else name)
        if whole.any():
            sums = emit(relax.op.add(sums, emitter.constants.make(whole, f"{stem}.bias", sources)), name)
    else:
        totals = emitter.constants.make((-product.totals).astype(np.int32), f"{stem}.sum", sources)
        taken = emit(relax.op.multiply(totals, data.zero))
        sums = emit(relax.op.add(emit(product.call), taken), name)
    emitter.real[variable] = sums
    return None

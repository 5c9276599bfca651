"""Converts matmuls and convolutions of quantized operands to 8-bit integers with int32 accumulation, and the zero-point
correction."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.rewrite import rebuild_call
from packager.transforms.quantize.arithmetic import LARGEST, Emitter, in_range
from packager.transforms.quantize.signedness import SHIFT, as_stored
from packager.transforms.quantize.values import NO_BOUNDS, Linear, Quantized, Term, compact, is_zero, union
from packager.transforms.quantize.window_sums import emit_window_sums

BYTES = ("int8", "uint8")


# The most elements of a window whose products with bytes, and their sum times a byte, are added up in int32.
MOST_ELEMENTS = 2**31 // (255 * 256)


@dataclass(frozen=True)
class _Weights:
    """Weights as int8, an expression; their numbers after the zero point; and what int8 is greater than these by.

    ``excess`` is None if nothing. Else it is one number, or one for each column.
    """

    value: Any
    array: Array
    excess: Array | None = None


@dataclass(frozen=True)
class _Sums:
    """An integer product: its call, the per-channel sums of the weights, their scales, and an upper bound on
    magnitudes. ``beside`` are sums of the data, and what times they are added."""

    call: Any
    totals: Array
    scale: Array
    limit: float
    beside: tuple[Any, Any] | None = None


def convolution(emitter: Emitter, variable: Any, call: relax.Call) -> Linear | None:
    """Return an integer convolution of one to three dimensions, or None if its operands are not quantized suitably.

    An int32 result is emitted.
    """
    operands = _operands(emitter, call)
    attrs, axes = call.attrs, call.args[0].ty.ndim - 2
    image = "DHW"[-axes:] if axes > 1 else "W"
    plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (f"NC{image}", f"OI{image}", f"NC{image}")
    on_cpu = emitter.data == "uint8"
    if axes != 2 and not on_cpu:
        return None
    if operands is None or not plain or not isinstance(call.args[0].ty.shape, relax.ShapeExpr):
        return None
    data, weight = operands
    assert weight.array is not None
    summed = math.prod(weight.array.shape[1:]) if on_cpu and int(attrs.groups) == 1 else 0
    weights = _weights(emitter, weight, summed=summed)
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
    array = weights.array
    window = tuple(range(1, axes + 2))
    totals = array.astype(np.int64).sum(axis=window).reshape(1, -1, *ones)

    sums = _Sums(
        rebuild_call(call, value, weights.value, padding=padding, out_dtype="int32"),
        totals,
        scale.reshape((1, -1, *ones) if scale.ndim else ()),
        _largest(data, array, window),
    )
    if weights.excess is not None:
        name = f"{weight.sources[0]}.ones"
        windows = emit_window_sums(emitter, call, value, padding, tuple(map(int, array.shape[1:])), name)
        sums = replace(sums, beside=_beside(emitter, weight, weights.excess, windows, (1, -1, *ones)))
    return _corrected(emitter, variable, sums, data, weight)


def matmul(emitter: Emitter, variable: Any, call: relax.Call) -> Linear | None:
    """Return an integer matmul, or None if its operands are not quantized suitably. An int32 result is emitted."""
    operands = _operands(emitter, call)
    ranks = [argument.ty.ndim for argument in call.args]
    if operands is None or min(ranks) < 2:
        return None
    data, weight = operands
    assert weight.array is not None
    weights = _weights(emitter, weight, summed=weight.array.shape[-2] if emitter.data else 0)
    if weights is None:
        return None
    array, scale = weights.array, compact(weight.scale)
    if any(extent != 1 for extent in array.shape[:-2]) or any(extent != 1 for extent in scale.shape[:-1]):
        return None
    totals = array.astype(np.int64).sum(axis=-2).reshape(-1)

    sums = _Sums(
        rebuild_call(call, data.value, weights.value, out_dtype="int32"),
        totals,
        scale.reshape(-1) if scale.ndim else scale,
        _largest(data, array, (-2,)),
    )
    if weights.excess is not None:
        rows = _row_sums(emitter, call, data.value, array, weight)
        sums = replace(sums, beside=_beside(emitter, weight, weights.excess, rows, (-1,)))
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
    return as_stored(emitter.emit, data, emitter.data), weight


def _weights(emitter: Emitter, weight: Quantized, *, summed: int) -> _Weights | None:
    """Return weights as int8; None if they do not fit.

    What they exceed int8 by is subtracted after, of sums of ``summed`` elements, unless that is 0.
    """
    assert weight.array is not None
    if not isinstance(weight.zero, np.ndarray):
        return None
    if weight.stored == "int8" and is_zero(weight.zero):
        if isinstance(weight.value, relax.Var):
            return _Weights(weight.value, weight.array)
        return _Weights(emitter.constants.make(weight.array, "weight", weight.sources), weight.array)
    stored = weight.array.astype(np.int32)
    centered = stored - weight.zero
    name, limits = f"{weight.sources[0]}.int8", np.iinfo(np.int8)
    if centered.size and centered.min() >= limits.min and centered.max() <= limits.max:
        array = centered.astype(np.int8)
        return _Weights(emitter.constants.make(array, name, weight.sources), array)
    if not 0 < summed <= MOST_ELEMENTS:
        return None
    middle = SHIFT if weight.stored == "uint8" else 0
    value = emitter.constants.make((stored - middle).astype(np.int8), name, weight.sources)
    return _Weights(value, centered, compact(np.asarray(weight.zero - np.int32(middle), np.int32)))


def _row_sums(emitter: Emitter, call: relax.Call, value: Any, array: Array, weight: Quantized) -> Any:
    """Emit the sums of a matmul's rows with one column: on CPUs a product with ones, which has instructions."""
    if emitter.data == "int8":
        return emitter.emit(relax.op.sum(emitter.emit(relax.op.astype(value, "int32")), -1, keepdims=True))
    ones = np.ones((*array.shape[:-1], 1), np.int8)
    column = emitter.constants.make(ones, f"{weight.sources[0]}.ones", weight.sources)
    return emitter.emit(rebuild_call(call, value, column, out_dtype="int32"))


def _beside(emitter: Emitter, weight: Quantized, excess: Array, sums: Any, columns: tuple[int, ...]) -> tuple[Any, Any]:
    """Return sums of the data, and what times they are to be added to ``columns``."""
    added = np.asarray(-excess.reshape(columns if excess.ndim else ()), np.int32)
    return sums, emitter.constants.make(added, f"{weight.sources[0]}.excess", weight.sources)


def _emit(emitter: Emitter, product: _Sums, name: str) -> Any:
    """Emit the product of integers."""
    if product.beside is None:
        return emitter.emit(product.call, name)
    added = emitter.emit(relax.op.multiply(*product.beside))
    return emitter.emit(relax.op.add(emitter.emit(product.call), added), name)


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
            term = Term(_emit(emitter, product, name), factor, product.limit, whole)
            return Linear((term,), np.zeros(()), NO_BOUNDS, sources)
        sums = _emit(emitter, product, "" if whole.any() else name)
        if whole.any():
            sums = emit(relax.op.add(sums, emitter.constants.make(whole, f"{stem}.bias", sources)), name)
    else:
        totals = emitter.constants.make((-product.totals).astype(np.int32), f"{stem}.sum", sources)
        taken = emit(relax.op.multiply(totals, data.zero))
        sums = emit(relax.op.add(_emit(emitter, product, ""), taken), name)
    emitter.real[variable] = sums
    return None

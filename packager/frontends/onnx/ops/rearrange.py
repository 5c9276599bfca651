"""Converters of data movement that TVM's importer lacks, or supports with constants only; and Det, IsInf.

ONNX operators OneHot (11), Reshape (25), ReverseSequence (10), Col2Im (18), Det (22), IsInf (20), BatchNormalization in
training mode (15).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from packager.bundle.dtypes import HALVES
from packager.frontends.batch_norms import normalize_by_statistics
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    as_type,
    constant,
    dtype_of,
    extents,
    known,
    output_count,
    static_extents,
)
from packager.graph.dataflow import shape_of
from packager.graph.windows.col2im import Windows, col2im


def _one_hot(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    indices, _, values = inputs
    depth = int(known(inputs[1], attributes, "the depth of OneHot").item())
    axis = attributes.get("axis", -1)
    depth_axis = axis % (indices.ty.ndim + 1)

    def compute(chosen: Any, pair: Any) -> Any:
        shape = [*chosen.shape[:depth_axis], tirx.const(depth, "int64"), *chosen.shape[depth_axis:]]

        def element(*i: Any) -> Any:
            index = chosen(*i[:depth_axis], *i[depth_axis + 1 :])
            wide = index.astype("int64")
            wanted = i[depth_axis].astype("int64")
            # Indices in [-depth, 0) count from the end; other out-of-range indices, and fractions, select nothing.
            same = tirx.any(wide == wanted, wide + tirx.const(depth, "int64") == wanted)
            return tirx.if_then_else(same, pair[1], pair[0])

        return te.compute(shape, element, name="one_hot")

    return builder.call_te(compute, indices, values, primfunc_name_hint="one_hot")


def _reshape(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Reshape; an extent of -1 by canceling equal factors, which TVM would multiply out and divide by each other."""
    data, target = inputs
    wanted = list(target.values) if isinstance(target, relax.ShapeExpr) else constant(target, attributes)
    shape = shape_of(data)
    if wanted is None or shape is None or all(isinstance(extent, int) for extent in shape):
        return convert("Reshape", list(inputs), attributes)
    wanted = [int(extent) if isinstance(extent, int | np.integer | tirx.IntImm) else extent for extent in wanted]
    if not attributes.get("allowzero", 0) and len(wanted) <= len(shape):
        wanted = [shape[axis] if isinstance(e, int) and e == 0 else e for axis, e in enumerate(wanted)]
    rest = _quotient(shape, [extent for extent in wanted if not (isinstance(extent, int) and extent == -1)], attributes)
    if rest is None or sum(isinstance(extent, int) and extent == -1 for extent in wanted) != 1:
        return convert("Reshape", list(inputs), attributes)
    return relax.op.reshape(data, [rest if isinstance(e, int) and e == -1 else e for e in wanted])


def _quotient(extents: Sequence[Any], by: Sequence[Any], attributes: Mapping[str, Any]) -> Any | None:
    """Return the product of ``extents`` divided by that of others; None unless all factors of these cancel."""
    analyzer = attributes["tvm_custom"]["analyzer"]
    left = [factor for extent in extents for factor in _factors(extent)]
    number, symbols = math.prod(e for e in left if isinstance(e, int)), [e for e in left if not isinstance(e, int)]
    divisor = 1
    for factor in (factor for extent in by for factor in _factors(extent)):
        if isinstance(factor, int):
            divisor *= factor
            continue
        equal = [n for n, symbol in enumerate(symbols) if analyzer.can_prove_equal(symbol, factor)]
        if not equal:
            return None
        del symbols[equal[0]]
    if divisor == 0 or number % divisor:
        return None
    return math.prod(symbols, start=number // divisor)


def _factors(extent: Any) -> list[Any]:
    if isinstance(extent, tirx.Mul):
        return [*_factors(extent.a), *_factors(extent.b)]
    return [int(extent) if isinstance(extent, int | tirx.IntImm) else extent]


def _reverse_sequence(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    time, batch = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)

    def compute(x: Any, lengths: Any) -> Any:
        def element(*i: Any) -> Any:
            length = lengths(i[batch])
            at = list(i)
            step = i[time].astype(lengths.dtype)
            mirrored = tirx.min(tirx.max(length - 1 - step, 0), x.shape[time].astype(lengths.dtype) - 1)
            at[time] = tirx.Select(step < length, mirrored, step).astype(i[time].ty.dtype)
            return x(*at)

        return te.compute(x.shape, element, name="reverse_sequence")

    return builder.call_te(compute, inputs[0], inputs[1], primfunc_name_hint="reverse_sequence")


def _columns_to_image(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    image = known(inputs[1], attributes, "the image shape of Col2Im").tolist()
    block = known(inputs[2], attributes, "the block shape of Col2Im").tolist()
    rank = len(image)
    dilations, strides = attributes.get("dilations", [1] * rank), attributes.get("strides", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    static_extents(inputs[0], first=1)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    numbers = (image, block, counts, strides, dilations, pads[:rank])
    return col2im(inputs[0], Windows(*(tuple(map(int, values)) for values in numbers)))


def _is_infinite(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    signs = [attributes.get("detect_negative", 1), attributes.get("detect_positive", 1)]
    if all(signs):
        if dtype_of(inputs[0]) == "bfloat16":
            return convert("IsInf", [builder.emit(relax.op.astype(inputs[0], "float32"))], attributes)
        return convert("IsInf", list(inputs), attributes)
    dtype = dtype_of(inputs[0])
    if not any(signs):
        return relax.op.zeros(inputs[0].ty.shape, "bool")
    wanted = relax.const(np.inf if signs[1] else -np.inf, dtype)
    return relax.op.equal(inputs[0], wanted)


def _determinant(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    """Gaussian elimination with partial pivoting; each step is a loop nest over all matrices."""
    data = inputs[0]
    shape = extents(data)
    order, dtype, last = shape[-1], dtype_of(data), len(shape) - 1
    if not isinstance(order, int) or order > 64:
        raise ValueError("Det of matrices of symbolic order, or above 64")
    emit, op = builder.emit, relax.op
    product, zero, one = (relax.const(value, dtype) for value in (1.0, 0.0, 1.0))
    for size in range(order, 0, -1):
        column = emit(op.squeeze(op.strided_slice(data, [last], [0], [1]), [-1]))
        pivot = emit(op.argmax(op.abs(column), axis=-1, keepdims=True))
        chosen = emit(op.equal(op.astype(op.arange(0, size, 1, "int64"), "int64"), pivot))
        value = emit(op.sum(op.where(chosen, column, zero), axis=-1))
        product = emit(op.multiply(value, product))
        if size == 1:
            break
        # Swapping the pivot row with the first changes the sign.
        swaps = emit(op.squeeze(op.greater(pivot, relax.const(0, "int64")), [-1]))
        product = emit(op.where(swaps, op.negative(product), product))
        mask = emit(op.expand_dims(chosen, -1))
        row = emit(op.sum(op.where(mask, data, zero), axis=-2, keepdims=True))
        first = emit(op.strided_slice(data, [last - 1], [0], [1]))
        rest = emit(op.strided_slice(op.where(mask, first, data), [last - 1], [1], [size]))
        safe = emit(op.expand_dims(op.where(op.equal(value, zero), one, value), [-2, -1]))
        factor = emit(op.divide(op.strided_slice(rest, [last], [0], [1]), safe))
        tail = emit(op.strided_slice(row, [last], [1], [size]))
        data = emit(op.subtract(op.strided_slice(rest, [last], [1], [size]), op.multiply(factor, tail)))
    return product


def _batch_norm(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    x, scale, bias, mean, variance = inputs
    if not attributes.get("training_mode", 0):
        if dtype_of(x) not in HALVES:
            return convert("BatchNormalization", list(inputs), attributes)
        return normalize_by_statistics(builder.emit, x, inputs[1:], attributes.get("epsilon", 1e-5))
    emit, op, dtype = builder.emit, relax.op, dtype_of(mean)
    wide = as_type(builder, x, dtype)
    axes = [axis for axis in range(x.ty.ndim) if axis != 1]
    momentum = attributes.get("momentum", 0.9)
    current = emit(op.mean(wide, axes, keepdims=True))
    centered = emit(op.subtract(wide, current))
    spread = emit(op.mean(op.multiply(centered, centered), axes, keepdims=True))
    root = emit(op.sqrt(op.add(spread, relax.const(attributes.get("epsilon", 1e-5), dtype))))
    shape = [1, -1, *[1] * (x.ty.ndim - 2)]
    gain, offset = (emit(op.reshape(emit(op.astype(p, dtype)), shape)) for p in (scale, bias))
    result = emit(op.add(op.multiply(op.divide(centered, root), gain), offset))
    if output_count(attributes) == 1:
        return op.astype(result, dtype_of(x))

    def moved(old: Any, new: Any) -> Any:
        kept = emit(op.multiply(old, relax.const(momentum, dtype)))
        return emit(op.add(kept, op.multiply(op.reshape(new, [-1]), relax.const(1.0 - momentum, dtype))))

    return relax.Tuple([emit(op.astype(result, dtype_of(x))), moved(mean, current), moved(variance, spread)])


CONVERTERS: Mapping[str, Converter] = {
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Reshape": _reshape,
    "Col2Im": _columns_to_image,
    "IsInf": _is_infinite,
    "Det": _determinant,
    "BatchNormalization": _batch_norm,
}

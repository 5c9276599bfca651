"""Converters of normalizations, EyeLike and Dropout that TVM's importer lacks or supports only in part.

ONNX operators LayerNormalization (version 17), RMSNormalization (23), MeanVarianceNormalization (13), LpNormalization
(22), EyeLike (22) and Dropout (22).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import get_type

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, optional, output_count


def _layer_normalization(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """LayerNormalization-17. The optional outputs mean and 1 / deviation are computed if used."""
    emit = builder.emit
    data = inputs[0]
    rank, axis, count = data.ty.ndim, attributes.get("axis", -1), output_count(attributes)
    axes = list(range(axis % rank, rank))
    is_double = dtype_of(data) == "float64"
    normalized = None
    if not is_double:
        normalized = convert("LayerNormalization", list(inputs), {**attributes, "axis": axes[0] - rank})[0]
        if count == 1:
            return normalized
    stash = "float64" if is_double else get_type(attributes.get("stash_type", 1))
    wide = data if dtype_of(data) == stash else emit(relax.op.astype(data, stash))
    mean = emit(relax.op.mean(wide, axes, keepdims=True))
    off = emit(relax.op.subtract(wide, mean))
    variance = emit(relax.op.mean(emit(relax.op.multiply(off, off)), axes, keepdims=True))
    shifted = emit(relax.op.add(variance, relax.const(attributes.get("epsilon", 1e-5), stash)))
    deviation = emit(relax.op.divide(relax.const(1, stash), emit(relax.op.sqrt(shifted))))
    if normalized is None:  # TVM has no layer_norm of float64
        normalized = relax.op.multiply(emit(relax.op.multiply(off, deviation)), inputs[1])
        if optional(inputs, 2) is not None:
            normalized = relax.op.add(emit(normalized), inputs[2])
    return relax.Tuple([emit(normalized), mean, deviation][:count])


def _rms_normalization(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """RMSNormalization-23. TVM cannot lower one over all axes: prepend an axis of extent 1."""
    data, scale = inputs
    rank, axis = data.ty.ndim, attributes.get("axis", -1)
    if axis % rank:
        return convert("RMSNormalization", [data, scale], {**attributes, "axis": axis % rank})
    shape = extents(data)
    data = builder.emit(relax.op.expand_dims(data, axis=0))
    result = builder.emit(convert("RMSNormalization", [data, scale], {**attributes, "axis": 1}))
    return relax.op.reshape(result, shape)


def _mean_variance(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """MeanVarianceNormalization-13: (x - mean) / (deviation + 1e-9); half precision is computed in float32."""
    emit = builder.emit
    given = dtype_of(inputs[0])
    dtype = given if given in ("float32", "float64") else "float32"
    data = inputs[0] if dtype == given else emit(relax.op.astype(inputs[0], dtype))
    axes = list(attributes.get("axes", (0, 2, 3)))
    off = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True))))
    variance = emit(relax.op.mean(emit(relax.op.multiply(off, off)), axes, keepdims=True))
    deviation = emit(relax.op.add(emit(relax.op.sqrt(variance)), relax.const(1e-9, dtype)))
    result = relax.op.divide(off, deviation)
    return result if dtype == given else relax.op.astype(emit(result), given)


def _lp_normalization(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """LpNormalization-22: x / norm along an axis, 0 where the norm is 0."""
    emit = builder.emit
    (data,) = inputs
    dtype, axis, p = dtype_of(data), attributes.get("axis", -1), attributes.get("p", 2)
    if p not in (1, 2):
        raise ValueError(f"p = {p} is neither 1 nor 2")
    # As in onnx's reference, p = 1 sums absolute values.
    terms = emit(relax.op.abs(data)) if p == 1 else emit(relax.op.multiply(data, data))
    norm = emit(relax.op.sum(terms, axis, keepdims=True))
    norm = norm if p == 1 else emit(relax.op.sqrt(norm))
    zero = emit(relax.op.equal(norm, relax.const(0, dtype)))
    return relax.op.where(zero, relax.const(0, dtype), emit(relax.op.divide(data, norm)))


def _eye_like(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """EyeLike-22: ones on the k-th diagonal of a matrix of the input's shape."""
    (data,) = inputs
    rows, columns = extents(data)
    dtype = get_type(attributes["dtype"]) if "dtype" in attributes else dtype_of(data)
    row = builder.emit(relax.op.reshape(builder.emit(relax.op.arange(0, rows, 1, "int64")), [rows, 1]))
    column = builder.emit(relax.op.reshape(builder.emit(relax.op.arange(0, columns, 1, "int64")), [1, columns]))
    diagonal = builder.emit(relax.op.add(row, relax.const(attributes.get("k", 0), "int64")))
    return relax.op.astype(builder.emit(relax.op.equal(diagonal, column)), dtype)


CONVERTERS: Mapping[str, Converter] = {
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_normalization,
    "EyeLike": _eye_like,
}

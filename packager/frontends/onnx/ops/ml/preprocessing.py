"""Converters of preprocessing: scaling, missing values, categories, lookup tables, columns.

ONNX operators Scaler (version 1), Normalizer (1), Imputer (1), Binarizer (1), OneHotEncoder (1), LabelEncoder (4),
ArrayFeatureExtractor (1) and FeatureVectorizer (1) of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.ml.attributes import array, as_rows, require_length, weight
from packager.frontends.onnx.ops.operands import Convert, Converter, as_type, dtype_of, extents, static_extents, text

NORMS = ("MAX", "L1", "L2")


def _per_feature(attributes: Mapping[str, Any], data: Any, name: str, values: Array) -> Any:
    """Return one value for all features, or one for each, as a row. Raises ValueError for another number of them."""
    if values.size != 1:
        require_length(name, values, static_extents(data, "the features", len(extents(data)) - 1)[0])
    return weight(attributes, name, values.reshape(()) if values.size == 1 else values)


def _scaler(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = as_type(builder, inputs[0], "float32")
    for name, op in (("offset", relax.op.subtract), ("scale", relax.op.multiply)):
        values = array(attributes, name, np.float32)
        if not values.size:
            raise ValueError(f"Scaler without {name}")
        data = builder.emit(op(data, _per_feature(attributes, data, name, values)))
    return data


def _normalizer(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, kind = as_type(builder, inputs[0], "float32"), text(attributes, "norm", "MAX")
    if kind not in NORMS:
        raise ValueError(f"norm is {kind!r}, expected one of {', '.join(NORMS)}")
    emit, op = builder.emit, relax.op
    match kind:
        case "MAX":
            size = emit(op.max(data, axis=-1, keepdims=True))
        case "L1":
            size = emit(op.sum(emit(op.abs(data)), axis=-1, keepdims=True))
        case _:
            size = emit(op.sqrt(emit(op.sum(emit(op.multiply(data, data)), axis=-1, keepdims=True))))
    empty = emit(op.equal(size, relax.const(0.0, "float32")))
    return emit(op.divide(data, emit(op.where(empty, relax.const(1.0, "float32"), size))))


def _imputer(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = inputs[0]
    floats = "float" in dtype_of(data)
    name, marker = ("floats", "float") if floats else ("int64s", "int64")
    values = array(attributes, f"imputed_value_{name}", dtype_of(data))
    if not values.size:
        raise ValueError(f"Imputer of {dtype_of(data)} without imputed_value_{name}")
    missing = attributes.get(f"replaced_value_{marker}", 0)
    is_missing = (
        relax.op.isnan(data) if np.isnan(missing) else relax.op.equal(data, relax.const(missing, dtype_of(data)))
    )
    return relax.op.where(
        builder.emit(is_missing), _per_feature(attributes, data, f"imputed_value_{name}", values), data
    )


def _binarizer(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    dtype = dtype_of(inputs[0])
    above = builder.emit(relax.op.greater(inputs[0], relax.const(attributes.get("threshold", 0.0), dtype)))
    return relax.op.astype(above, dtype)


def _one_hot(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Return a new last axis with one for the category; other values have none."""
    categories = array(attributes, "cats_int64s", np.int64)
    if not categories.size:
        raise ValueError("OneHotEncoder without cats_int64s: strings are not supported")
    data = builder.emit(relax.op.expand_dims(as_type(builder, inputs[0], "int64"), -1))
    same = builder.emit(relax.op.equal(data, weight(attributes, "categories", categories)))
    return relax.op.astype(same, "float32")


def _extract(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    """Take columns of the last axis; a vector is treated as one row."""
    data, indices = inputs
    flat = builder.emit(relax.op.reshape(indices, [-1]))
    if data.ty.ndim == 1:
        data = builder.emit(relax.op.expand_dims(data, 0))
    return relax.op.take(data, flat, axis=data.ty.ndim - 1)


def _vectorizer(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    widths = array(attributes, "inputdimensions", np.int64)
    require_length("inputdimensions", widths, len(inputs))
    columns = [as_rows(builder, data, "float32") for data in inputs]
    for number, (data, width) in enumerate(zip(columns, widths.tolist(), strict=True)):
        if int(data.ty.shape.values[1]) != width:
            raise ValueError(f"input {number} has {data.ty.shape.values[1]} columns, inputdimensions says {width}")
    return relax.op.concat(columns, axis=1) if len(columns) > 1 else columns[0]


def _label_encoder(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    found = {}
    for which in ("keys", "values"):
        for kind in ("tensor", "int64s", "floats"):
            if f"{which}_{kind}" in attributes:
                dtype = {"int64s": np.int64, "floats": np.float32}.get(kind)
                found[which] = array(attributes, f"{which}_{kind}", dtype).reshape(-1)
    if len(found) < 2 or any(values.dtype.kind not in "biuf" for values in found.values()):
        raise ValueError("LabelEncoder of strings")
    keys, values = found["keys"].astype(dtype_of(inputs[0])), found["values"]
    require_length("values", values, len(keys))
    default = attributes.get("default_float", -0.0) if values.dtype.kind == "f" else attributes.get("default_int64", -1)
    if "default_tensor" in attributes:
        default = array(attributes, "default_tensor").item()
    table = np.concatenate([values, np.asarray([default], values.dtype)])
    unknown = tirx.const(len(keys), "int32")
    nan = np.flatnonzero(np.isnan(keys)) if keys.dtype.kind == "f" else np.zeros(0, np.int64)

    def compute(x: Any, known: Any) -> Any:
        number = te.reduce_axis((0, len(keys)), name="key")  # the first of equal keys wins

        def element(*i: Any) -> Any:
            place = tirx.Select(x(*i) == known(number), number.var.astype("int32"), unknown)
            return te.min(place, axis=number)

        return te.compute(x.shape, element, name="label_encoder")

    data = inputs[0]
    place = builder.emit(
        builder.call_te(compute, data, weight(attributes, "keys", keys), primfunc_name_hint="label_encoder")
    )
    place = builder.emit(relax.op.minimum(place, relax.const(len(keys), "int32")))
    if nan.size:
        is_nan = builder.emit(relax.op.isnan(data))
        place = builder.emit(relax.op.where(is_nan, relax.const(int(nan[0]), "int32"), place))
    return relax.op.take(weight(attributes, "values", table), place, axis=0)


CONVERTERS: Mapping[str, Converter] = {
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "Imputer": _imputer,
    "Binarizer": _binarizer,
    "OneHotEncoder": _one_hot,
    "ArrayFeatureExtractor": _extract,
    "FeatureVectorizer": _vectorizer,
    "LabelEncoder": _label_encoder,
}

"""Converters of linear models.

ONNX operators LinearRegressor (version 1) and LinearClassifier (1), as onnxruntime computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.ml.attributes import array, as_rows, class_labels, require_length, weight
from packager.frontends.onnx.ops.ml.scores import choose, labels_of, second_class, top_class, transform
from packager.frontends.onnx.ops.operands import Convert, Converter, text


def product(
    builder: Any, attributes: Mapping[str, Any], data: Any, coefficients: Array, targets: int, bias: Array
) -> Any:
    """Return the products of rows and coefficients, [targets, features], plus a bias. Raises ValueError."""
    features = int(data.ty.shape.values[1])
    if targets < 1:
        raise ValueError(f"there are {targets} targets")
    require_length("coefficients", coefficients, targets * features)
    weights = weight(attributes, "coefficients", coefficients.reshape(targets, features).T)
    result = builder.emit(relax.op.matmul(data, weights))
    if not bias.any():
        return result
    return builder.emit(relax.op.add(result, weight(attributes, "bias", bias.astype(np.float32).reshape(1, -1))))


def _regressor(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = as_rows(builder, inputs[0], "float32")
    targets = int(attributes.get("targets", 1))
    bias = array(attributes, "intercepts", np.float32)
    if bias.size:
        require_length("intercepts", bias, targets)
    scores = product(builder, attributes, data, array(attributes, "coefficients", np.float32), targets, bias)
    kind = text(attributes, "post_transform", "NONE")
    return transform(builder, scores, kind if targets > 1 or kind == "PROBIT" else "NONE")


def _classifier(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = as_rows(builder, inputs[0], "float32")
    bias = array(attributes, "intercepts", np.float32)
    labels = class_labels(attributes, ("classlabels_ints",))
    scores = product(builder, attributes, data, array(attributes, "coefficients", np.float32), bias.size, bias)
    kind = text(attributes, "post_transform", "NONE")
    if bias.size == 1:
        positive = builder.emit(relax.op.greater(scores, relax.const(0.0, "float32")))
        label = choose(builder, positive, labels if len(labels) == 2 else np.asarray([0, 1]))
        if len(labels) == 2:
            return relax.Tuple([label, second_class(builder, scores, kind, complement=True)])
        return relax.Tuple([label, transform(builder, scores, kind if kind == "PROBIT" else "NONE")])
    require_length("classlabels", labels, bias.size)
    label = labels_of(builder, top_class(builder, scores), labels)
    return relax.Tuple([label, transform(builder, scores, kind)])


CONVERTERS: Mapping[str, Converter] = {"LinearRegressor": _regressor, "LinearClassifier": _classifier}

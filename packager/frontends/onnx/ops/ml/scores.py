"""Scores of classes: transformations, the class of the greatest score, and what onnxruntime does with two classes."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.ml.attributes import require_length
from packager.frontends.onnx.ops.operands import dtype_of

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # as TreeEnsemble numbers them
# onnxruntime's approximation of the inverse error function, and the magnitude up to which a score is zero.
PROBIT_A, PROBIT_PI = np.float32(0.147), np.float32(3.14159)
NEARLY_ZERO = 1e-7


def transform(builder: Any, scores: Any, kind: str) -> Any:
    """Apply a ``post_transform`` to rows of scores. Raises ValueError for an unknown one."""
    if kind not in TRANSFORMS:
        raise ValueError(f"post_transform is {kind!r}, expected one of {', '.join(TRANSFORMS)}")
    emit, op = builder.emit, relax.op
    match kind:
        case "SOFTMAX":
            return emit(op.nn.softmax(scores, axis=-1))
        case "LOGISTIC":
            return emit(op.sigmoid(scores))
        case "PROBIT":
            return _probit(builder, scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(builder, scores)
    return scores


def _probit(builder: Any, scores: Any) -> Any:
    emit, op = builder.emit, relax.op

    def number(value: float) -> Any:
        return relax.const(value, dtype_of(scores))

    x = emit(op.subtract(emit(op.multiply(scores, number(2.0))), number(1.0)))
    product = emit(op.multiply(emit(op.subtract(number(1.0), x)), emit(op.add(number(1.0), x))))
    log = emit(op.log(product))
    half = emit(op.multiply(log, number(0.5)))
    v = emit(op.add(half, number(float(np.float32(2) / (PROBIT_PI * PROBIT_A)))))
    v2 = emit(op.multiply(log, number(float(np.float32(1) / PROBIT_A))))
    root = emit(op.sqrt(emit(op.subtract(emit(op.multiply(v, v)), v2))))
    size = emit(op.sqrt(emit(op.subtract(root, v))))
    sign = emit(op.where(emit(op.less(x, number(0.0))), number(-(2**0.5)), number(2**0.5)))
    return emit(op.multiply(size, sign))


def _softmax_zero(builder: Any, scores: Any) -> Any:
    """Return the softmax in which zeros stay zeros."""
    emit, op = builder.emit, relax.op
    zero = emit(op.less_equal(emit(op.abs(scores)), relax.const(NEARLY_ZERO, dtype_of(scores))))
    most = emit(op.max(scores, axis=-1, keepdims=True))
    powers = emit(op.exp(emit(op.subtract(scores, most))))
    scaled = emit(op.multiply(scores, emit(op.exp(emit(op.negative(most))))))
    none = relax.const(0.0, dtype_of(scores))
    total = emit(op.sum(emit(op.where(zero, none, powers)), axis=-1, keepdims=True))
    return emit(op.divide(emit(op.where(zero, scaled, powers)), total))


def top_class(builder: Any, scores: Any) -> Any:
    """Return the index of the first greatest score of each row."""
    return builder.emit(relax.op.argmax(scores, axis=-1, keepdims=False))


def labels_of(builder: Any, index: Any, labels: Array) -> Any:
    """Return the labels of classes; none are looked up if they are the indices."""
    if np.array_equal(labels, np.arange(len(labels))):
        return index
    return builder.emit(relax.op.take(relax.const(labels, "int64"), index, axis=0))


def choose(builder: Any, positive: Any, labels: Array) -> Any:
    """Return the second label where ``positive`` is true, else the first; one for each row."""
    first, second = (relax.const(int(label), "int64") for label in labels)
    flat = builder.emit(relax.op.reshape(positive, [-1]))
    return builder.emit(relax.op.where(flat, second, first))


def both(builder: Any, first: Any, second: Any) -> Any:
    """Return two columns as one matrix."""
    return builder.emit(relax.op.concat([first, second], axis=-1))


def column(builder: Any, scores: Any, index: int) -> Any:
    """Return one column of a matrix, as a matrix."""
    return builder.emit(relax.op.strided_slice(scores, [1], [index], [index + 1]))


def second_class(builder: Any, score: Any, kind: str, *, complement: bool) -> Any:
    """Return the scores of two classes from that of the second, [rows, 1].

    ``complement``: they are probabilities, 1 - p and p, unless LOGISTIC makes probabilities of opposites.
    """
    emit, op = builder.emit, relax.op
    if kind == "PROBIT":
        raise ValueError("PROBIT of one score for two classes")
    if complement and kind != "LOGISTIC":
        return both(builder, emit(op.subtract(relax.const(1.0, dtype_of(score)), score)), score)
    pair = both(builder, emit(op.negative(score)), score)
    return transform(builder, pair, kind if kind == "LOGISTIC" else "NONE")


def binary(
    builder: Any, scores: Any, labels: Array, classes: Set[int], base: Array, weights: Array, kind: str
) -> tuple[Any, Any]:
    """Return labels and scores of a tree ensemble of two classes, of which ``classes`` have weights."""
    emit, op = builder.emit, relax.op
    dtype = dtype_of(scores)
    if base.size > 2:
        require_length("base_values", base, 2)
    first, second = (column(builder, scores, index) for index in range(2))
    has_second = 1 in classes
    one_class = len(classes) == 1
    if base.size == 2 and has_second:
        second = emit(op.add(first, relax.const(base[1].item(), dtype)))
        first = emit(op.negative(second))
    elif base.size == 2:
        first = emit(op.add(first, relax.const(base[0].item(), dtype)))
        second = emit(op.add(second, relax.const(base[1].item(), dtype)))
    elif base.size == 1:
        first = emit(op.add(first, relax.const(base[0].item(), dtype)))
    positive = second if has_second else first
    all_positive = bool((weights >= 0).all())
    bound = 0.5 if one_class and all_positive else 0.0
    chosen = emit(op.greater(positive, relax.const(bound, dtype)))
    label = choose(builder, chosen, labels if one_class else np.asarray([0, 1]))
    if has_second or base.size == 2:  # a class without weights has the score 0, whatever its base value
        none = emit(op.zeros_like(first))
        first, second = first if 0 in classes else none, second if has_second else none
        return label, transform(builder, both(builder, first, second), kind)
    return label, second_class(builder, first, kind, complement=one_class and all_positive)

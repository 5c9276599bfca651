"""Converters of support vector machines.

ONNX operators SVMRegressor (version 1) and SVMClassifier (1), as onnxruntime computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.ml.attributes import array, as_rows, class_labels, require_length, weight
from packager.frontends.onnx.ops.ml.linear import product
from packager.frontends.onnx.ops.ml.scores import choose, labels_of, second_class, top_class, transform
from packager.frontends.onnx.ops.operands import Convert, Converter, extents, text
from packager.lower.tir_loops import emit_sequential

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
# libsvm's iteration for the probabilities of several classes: steps, and the error at which it ends, over the classes.
MOST_STEPS, ERROR = 100, 0.005
LEAST_PROBABILITY = 1e-7


def _distances(data: Any, vectors: Any) -> Any:
    """Return the squares of distances; ``vectors`` are columns."""
    feature = te.reduce_axis((0, data.shape[1]), name="feature")

    def element(row: Any, vector: Any) -> Any:
        difference = data(row, feature) - vectors(feature, vector)
        return te.sum(difference * difference, axis=feature)

    return te.compute((data.shape[0], vectors.shape[1]), element, name="distances")


def _kernel(builder: Any, data: Any, attributes: Mapping[str, Any], count: int) -> Any:
    """Return the kernel of each row and each support vector. Raises ValueError."""
    kind = text(attributes, "kernel_type", "LINEAR")
    if kind not in KERNELS:
        raise ValueError(f"kernel_type is {kind!r}, expected one of {', '.join(KERNELS)}")
    parameters = array(attributes, "kernel_params", np.float32)
    if parameters.size:
        require_length("kernel_params", parameters, 3)
    gamma, offset, degree = (float(value) for value in (parameters if parameters.size else np.zeros(3)))
    emit, op = builder.emit, relax.op
    vectors, features = array(attributes, "support_vectors", np.float32), int(data.ty.shape.values[1])
    require_length("support_vectors", vectors, count * features)
    if kind == "RBF":
        columns = weight(attributes, "vectors", vectors.reshape(count, features).T)
        squares = emit(builder.call_te(_distances, data, columns, primfunc_name_hint="distances"))
        return emit(op.exp(emit(op.multiply(squares, relax.const(-gamma, "float32")))))
    if kind == "LINEAR":
        return product(builder, attributes, data, vectors, count, np.zeros(1))
    products = product(builder, attributes, data, vectors * np.float32(gamma), count, np.asarray([offset]))
    return emit(op.tanh(products) if kind == "SIGMOID" else op.power(products, relax.const(degree, "float32")))


def _regressor(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, count = as_rows(builder, inputs[0], "float32"), int(attributes.get("n_supports", 0))
    coefficients, rho = (array(attributes, name, np.float32) for name in ("coefficients", "rho"))
    require_length("rho", rho, 1)
    scores = product(
        builder, attributes, _kernel(builder, data, attributes, count) if count > 0 else data, coefficients, 1, rho
    )
    if not attributes.get("one_class", 0):
        return scores
    positive = builder.emit(relax.op.greater(scores, relax.const(0.0, "float32")))
    one, other = (relax.const(value, "float32") for value in (1.0, -1.0))
    return builder.emit(relax.op.where(positive, one, other))


def _classifier(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data = as_rows(builder, inputs[0], "float32")
    labels = class_labels(attributes, ("classlabels_ints",))
    if len(labels) < 2:
        raise ValueError(f"there are {len(labels)} classes, expected at least 2")
    counts = array(attributes, "vectors_per_class", np.int64)
    coefficients, rho = (array(attributes, name, np.float32) for name in ("coefficients", "rho"))
    kind = text(attributes, "post_transform", "NONE")
    if counts.size and (counts < 0).any():
        raise ValueError("vectors_per_class has a number below 0")
    if not counts.sum():
        return _linear(builder, attributes, data, labels, coefficients, rho, kind)
    require_length("vectors_per_class", counts, len(labels))
    pairs = list(combinations(range(len(labels)), 2))
    require_length("rho", rho, len(pairs))
    weights = _pair_weights(coefficients, counts, pairs)
    kernel = _kernel(builder, data, attributes, int(counts.sum()))
    scores = product(builder, attributes, kernel, weights.reshape(-1), len(pairs), rho)
    label = labels_of(builder, top_class(builder, _votes(builder, attributes, scores, len(labels), pairs)), labels)
    sigmoid = [array(attributes, name, np.float32) for name in ("prob_a", "prob_b")]
    if any(part.size for part in sigmoid):
        for name, part in zip(("prob_a", "prob_b"), sigmoid, strict=True):
            require_length(name, part, len(pairs))
        shares = _probabilities(builder, attributes, scores, len(labels), pairs, sigmoid)
        return relax.Tuple([label, transform(builder, shares, kind)])
    if len(pairs) == 1:
        return relax.Tuple([label, second_class(builder, scores, kind, complement=kind != "NONE")])
    return relax.Tuple([label, transform(builder, scores, kind)])


def _linear(
    builder: Any, attributes: Mapping[str, Any], data: Any, labels: Array, coefficients: Array, rho: Array, kind: str
) -> Any:
    if not rho.size:
        raise ValueError("rho has no element")
    scores = product(builder, attributes, data, coefficients, len(labels), rho[:1])
    label = labels_of(builder, top_class(builder, scores), labels)
    if len(labels) == 2:
        most = builder.emit(relax.op.max(scores, axis=-1))
        if (coefficients >= 0).all():
            positive = builder.emit(relax.op.greater_equal(most, relax.const(0.5, "float32")))
        else:
            positive = builder.emit(relax.op.greater(most, relax.const(0.0, "float32")))
        second = choose(builder, positive, np.asarray([0, labels[1]]))
        label = builder.emit(relax.op.where(positive, second, label))
    return relax.Tuple([label, transform(builder, scores, kind)])


def _pair_weights(coefficients: Array, counts: Array, pairs: Sequence[tuple[int, int]]) -> Array:
    """Return the weight of each support vector for each pair of classes, [pairs, vectors]."""
    total, ends = int(counts.sum()), np.cumsum(counts)
    require_length("coefficients", coefficients, (len(counts) - 1) * total)
    rows = coefficients.reshape(len(counts) - 1, total)
    weights = np.zeros((len(pairs), total), np.float32)
    for number, (one, other) in enumerate(pairs):
        for own, row in ((one, other - 1), (other, one)):
            part = slice(int(ends[own] - counts[own]), int(ends[own]))
            weights[number, part] = rows[row, part]
    return weights


def _votes(
    builder: Any, attributes: Mapping[str, Any], scores: Any, classes: int, pairs: Sequence[tuple[int, int]]
) -> Any:
    """Return how many pairs each class wins: the first of a pair if its score is positive."""
    gains, losses = np.zeros((len(pairs), classes), np.float32), np.zeros((1, classes), np.float32)
    for number, (one, other) in enumerate(pairs):
        gains[number, one], gains[number, other] = 1, -1
        losses[0, other] += 1
    emit, op = builder.emit, relax.op
    won = emit(op.astype(emit(op.greater(scores, relax.const(0.0, "float32"))), "float32"))
    return emit(op.add(emit(op.matmul(won, weight(attributes, "gains", gains))), weight(attributes, "losses", losses)))


def _probabilities(
    builder: Any,
    attributes: Mapping[str, Any],
    scores: Any,
    classes: int,
    pairs: Sequence[tuple[int, int]],
    sigmoid: Sequence[Array],
) -> Any:
    """Return the probability of each class from those of pairs."""
    emit, op = builder.emit, relax.op
    slope, offset = (weight(attributes, "sigmoid", part.reshape(1, -1)) for part in sigmoid)
    powers = emit(op.add(emit(op.multiply(scores, slope)), offset))
    shares = emit(op.subtract(relax.const(1.0, "float32"), emit(op.sigmoid(powers))))
    shares = emit(op.clip(shares, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))
    rows = extents(scores)[0]
    number = {pair: index for index, pair in enumerate(pairs)}

    def body(share: Any, result: Any, quadratic: Any, product_: Any, state: Any) -> None:
        _couple(share, result, quadratic, product_, state, classes, number, rows)

    results = [
        ((rows, classes), "float32"),
        ((classes * classes,), "float32"),
        ((classes,), "float32"),
        ((4,), "float32"),
    ]
    return emit_sequential(builder, "couple_probabilities", [shares], results, body)[0]


def _couple(
    share: Any, p: Any, q: Any, qp: Any, state: Any, classes: int, number: Mapping[tuple[int, int], int], rows: Any
) -> None:
    """Write the iteration of Wu, Lin and Weng (2004), section 3, as libsvm has it. state: pQp, error, done, step."""
    one, zero = tirx.const(1.0, "float32"), tirx.const(0.0, "float32")
    every = range(classes)

    def pair(row: Any, i: int, j: int) -> Any:
        return share[row, number[i, j]] if i < j else one - share[row, number[j, i]]

    with T.serial(0, rows) as row:
        for i in every:
            p[row, i] = tirx.const(1.0 / classes, "float32")
            squares = [pair(row, j, i) * pair(row, j, i) for j in every if j != i]
            total = squares[0]
            for square in squares[1:]:
                total = total + square
            q[i * classes + i] = total
            for j in every:
                if j != i:
                    q[i * classes + j] = zero - pair(row, j, i) * pair(row, i, j)
        state[2] = zero
        with T.serial(0, MOST_STEPS) as _step, T.If(state[2] == zero), T.Then():
            state[0] = zero
            for i in every:
                qp[i] = zero
                for j in every:
                    qp[i] = qp[i] + q[i * classes + j] * p[row, j]
                state[0] = state[0] + p[row, i] * qp[i]
            state[1] = zero
            for i in every:
                state[1] = tirx.max(state[1], tirx.abs(qp[i] - state[0]))
            with T.If(state[1] < tirx.const(ERROR / classes, "float32")):
                with T.Then():
                    state[2] = one
                with T.Else():
                    for i in every:
                        diagonal = q[i * classes + i]
                        state[3] = (state[0] - qp[i]) / diagonal
                        step = state[3]
                        p[row, i] = p[row, i] + step
                        grown = one + step
                        state[0] = (state[0] + step * (step * diagonal + qp[i] + qp[i])) / grown / grown
                        for j in every:
                            qp[j] = (qp[j] + step * q[i * classes + j]) / grown
                            p[row, j] = p[row, j] / grown


CONVERTERS: Mapping[str, Converter] = {"SVMRegressor": _regressor, "SVMClassifier": _classifier}

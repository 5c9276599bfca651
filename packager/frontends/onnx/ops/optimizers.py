"""Steps of optimizers: ``Momentum``, ``Adagrad`` and ``Adam`` of ``ai.onnx.preview.training``, version 1.

Inputs are the learning rate and the number of updates so far, both scalars, then all tensors, their gradients and their
states, group by group; outputs are new tensors and states in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, text

op = relax.op


class _Step:
    """Emits arithmetic on tensors of one element type, and numbers."""

    def __init__(self, builder: Any, dtype: str) -> None:
        self.builder, self.dtype = builder, dtype

    def _expr(self, value: Any) -> Any:
        return relax.const(value, self.dtype) if isinstance(value, float | int) else value

    def __call__(self, operator: Any, *values: Any) -> Any:
        return self.builder.emit(operator(*(self._expr(value) for value in values)))

    def scale(self, a: Any, b: Any) -> Any:
        """Return a product."""
        return self(op.multiply, a, b)

    def mix(self, a: Any, x: Any, b: Any, y: Any) -> Any:
        """Return a x + b y."""
        return self(op.add, self.scale(a, x), self.scale(b, y))

    def regularized(self, attributes: Mapping[str, Any], x: Any, g: Any) -> Any:
        """Return the gradient with that of the regularization."""
        return self(op.add, self.scale(float(attributes.get("norm_coefficient", 0.0)), x), g)


def _groups(inputs: Sequence[Any], count: int) -> list[list[Any]]:
    """Return by tensor: its value, gradient and states, ``count`` in all."""
    tensors = list(inputs[2:])
    number = len(tensors) // count
    return [[tensors[number * k + i] for k in range(count)] for i in range(number)]


def _scalars(builder: Any, inputs: Sequence[Any], dtype: str) -> tuple[Any, Any]:
    return tuple(builder.emit(op.reshape(builder.emit(op.astype(x, dtype)), [])) for x in inputs[:2])


def _in_order(results: Sequence[Sequence[Any]]) -> Any:
    return relax.Tuple([value for group in zip(*results, strict=True) for value in group])


def _momentum(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    alpha, beta = float(attributes["alpha"]), float(attributes["beta"])
    results = []
    for x, g, v in _groups(inputs, 3):
        step = _Step(builder, dtype_of(x))
        rate, time = _scalars(builder, inputs, dtype_of(x))
        gradient = step.regularized(attributes, x, g)
        started = step(op.greater, time, 0.0)
        weight = step(op.where, started, beta, 1.0)
        new = step.mix(alpha, v, weight, gradient)
        direction = step.mix(1.0, gradient, alpha, new) if text(attributes, "mode", "") == "nesterov" else new
        results.append((step(op.subtract, x, step.scale(rate, direction)), new))
    return _in_order(results)


def _adagrad(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    results = []
    for x, g, h in _groups(inputs, 3):
        step = _Step(builder, dtype_of(x))
        rate, time = _scalars(builder, inputs, dtype_of(x))
        decay = step.mix(float(attributes.get("decay_factor", 0.0)), time, 1.0, 1.0)
        gradient = step.regularized(attributes, x, g)
        new = step.mix(1.0, h, gradient, gradient)
        root = step(op.add, step(op.sqrt, new), float(attributes.get("epsilon", 1e-6)))
        moved = step(op.divide, step.scale(step(op.divide, rate, decay), gradient), root)
        results.append((step(op.subtract, x, moved), new))
    return _in_order(results)


def _adam(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    alpha, beta = float(attributes.get("alpha", 0.9)), float(attributes.get("beta", 0.999))
    results = []
    for x, g, v, h in _groups(inputs, 4):
        step = _Step(builder, dtype_of(x))
        rate, time = _scalars(builder, inputs, dtype_of(x))
        gradient = step.regularized(attributes, x, g)
        first = step.mix(alpha, v, 1 - alpha, gradient)
        second = step.mix(beta, h, 1 - beta, step.scale(gradient, gradient))
        root = step(op.add, step(op.sqrt, second), float(attributes.get("epsilon", 1e-6)))
        remaining = [step(op.subtract, 1.0, step(op.power, number, time)) for number in (alpha, beta)]
        corrected = step(op.divide, step.scale(rate, step(op.sqrt, remaining[1])), remaining[0])
        rate = step(op.where, step(op.greater, time, 0.0), corrected, rate)
        moved = step(op.subtract, x, step.scale(rate, step(op.divide, first, root)))
        post = 1.0 - float(attributes.get("norm_coefficient_post", 0.0))
        results.append((step.scale(post, moved), first, second))
    return _in_order(results)


TRAINING: Mapping[str, Converter] = {"Momentum": _momentum, "Adagrad": _adagrad, "Adam": _adam}

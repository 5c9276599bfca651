"""Activations of recurrent layers, under ONNX's names, as Relax expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from packager.graph.recurrences.recurrent import Activation

_OP = relax.op
_Emit = Callable[[Any, Activation, Callable[[float], Any]], Any]


def _elu(x: Any, a: Activation, number: Callable[[float], Any]) -> Any:
    below = _OP.subtract(_OP.exp(_OP.minimum(x, number(0.0))), number(1.0))
    return _OP.add(_OP.multiply(below, number(a.alpha)), _OP.maximum(x, number(0.0)))


def _softplus(x: Any, _a: Activation, number: Callable[[float], Any]) -> Any:
    """log(1 + exp(-|x|)) + max(x, 0): nothing overflows."""
    low = _OP.log(_OP.add(_OP.exp(_OP.negative(_OP.abs(x))), number(1.0)))
    return _OP.add(low, _OP.maximum(x, number(0.0)))


ACTIVATIONS: dict[str, _Emit] = {
    "Sigmoid": lambda x, _a, _n: _OP.sigmoid(x),
    "Tanh": lambda x, _a, _n: _OP.tanh(x),
    "Relu": lambda x, _a, _n: _OP.nn.relu(x),
    "Affine": lambda x, a, n: _OP.add(_OP.multiply(x, n(a.alpha)), n(a.beta)),
    "LeakyRelu": lambda x, a, n: _OP.where(_OP.less(x, n(0.0)), _OP.multiply(x, n(a.alpha)), x),
    "ThresholdedRelu": lambda x, a, n: _OP.where(_OP.greater(x, n(a.alpha)), x, n(0.0)),
    "ScaledTanh": lambda x, a, n: _OP.multiply(_OP.tanh(_OP.multiply(x, n(a.beta))), n(a.alpha)),
    "HardSigmoid": lambda x, a, n: _OP.clip(_OP.add(_OP.multiply(x, n(a.alpha)), n(a.beta)), 0.0, 1.0),
    "Elu": _elu,
    "Softsign": lambda x, _a, n: _OP.divide(x, _OP.add(_OP.abs(x), n(1.0))),
    "Softplus": _softplus,
}

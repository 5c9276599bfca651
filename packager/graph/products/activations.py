"""Recognize activations, however they are written, by evaluating them at sample values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.dtypes import FLOATS
from packager.graph.dataflow import Dataflow, only_last_is_read, operator_of, scalar_of
from packager.graph.identity import IdentityMap
from packager.ir.activations import CLIP, ELU, LEAKY_RELU, SINE, STAR_RELU, SWISH

Array = NDArray[np.float64]

# Wide enough to tell functions apart that differ in their tails or bounds, fine enough to see where pieces meet.
SAMPLES: Array = np.concatenate([np.linspace(-12, 12, 481), [-1e30, -60.0, -25.5, 25.5, 60.0, 1e30]])
# Constants of exporters are rounded to float32 or shorter: 0.7071 for sqrt(1/2).
TOLERANCE = 2e-4
erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability)) if 0 < probability < 1 else math.nan


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
}
# Where a float64 still tells the sine of a multiple.
MOST_OF_SINES = 12
# Activations that have parameters: those of what has these values, and what it is.
_At = Callable[[float], float]
_Function = Callable[..., Array]
FITS: dict[str, tuple[Callable[[_At], Sequence[float]], _Function]] = {
    LEAKY_RELU: (lambda at: [-at(-1) if 0 < -at(-1) < 1 else math.nan], lambda x, slope: np.where(x < 0, slope * x, x)),
    SWISH: (lambda at: [_logit(at(1))], lambda x, beta: x * _sigmoid(beta * x)),
    ELU: (lambda at: [-at(-60), at(1)], lambda x, low, slope: np.where(x > 0, slope * x, low * np.expm1(x))),
    STAR_RELU: (lambda at: [at(1) - at(-1), at(-1)], lambda x, scale, shift: scale * np.maximum(x, 0) ** 2 + shift),
    SINE: (lambda at: [math.asin(min(max(at(0.05), -1), 1)) / 0.05], lambda x, factor: np.sin(factor * x)),
}
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "negative": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf,
    "sqrt": np.sqrt,
    "square": np.square,
    "sin": np.sin,
    "cos": np.cos,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "where": np.where,
    "sigmoid": _sigmoid,
    "nn.relu": ACTIVATIONS["relu"],
    "nn.gelu": ACTIVATIONS["gelu"],
    "nn.gelu_tanh": ACTIVATIONS["gelu_tanh"],
    "nn.silu": ACTIVATIONS["silu"],
}
VIEWS = ("astype", "reshape")
LONGEST = 16  # operators beside views; the longest form that exporters write has ten


def find_activations(flow: Dataflow, source: Any) -> list[tuple[str, list[Any]]]:
    """Return the activations of ``source``, each with the variables that compute it, the result last.

    One begins with the one before it, as a ReLU6 with a ReLU. There is none if ``source`` has other uses.
    """
    values: IdentityMap[Array] = IdentityMap([(source, SAMPLES)])
    members: list[Any] = []
    found = []
    while _operators(flow, members) < LONGEST and (step := _next(flow, [source, *members], values)) is not None:
        variable, value = step
        values[variable] = value
        members.append(variable)
        name = _name_of(value)
        if name and only_last_is_read(flow, [source, *members]):
            found.append((name, list(members)))
            if flow.is_result(variable):
                break
    return found


def _operators(flow: Dataflow, members: Sequence[Any]) -> int:
    return sum(operator_of(flow.value(member)) not in VIEWS for member in members)


def _next(flow: Dataflow, known: Sequence[Any], values: IdentityMap[Array]) -> tuple[Any, Array] | None:
    """Return a variable that depends on known ones only, and its value."""
    for variable in known:
        for reader in flow.readers(variable):
            if reader not in values:
                value = _evaluate(flow.value(reader), values)
                if value is not None:
                    return reader, value
    return None


def _evaluate(value: Any, values: IdentityMap[Array]) -> Array | None:
    name = operator_of(value)
    if name in VIEWS:
        return values.get(value.args[0]) if str(value.ty.dtype) in FLOATS else None
    if name == "clip":
        operand, low, high = values.get(value.args[0]), *map(scalar_of, value.args[1:3])
        return None if operand is None or low is None or high is None else np.clip(operand, low, high)
    if name == "nn.leakyrelu":
        operand = values.get(value.args[0])
        return None if operand is None else np.where(operand > 0, operand, float(value.attrs.alpha) * operand)
    if name == "nn.softplus" and value.attrs.beta == 1:
        operand = values.get(value.args[0])
        return None if operand is None else np.logaddexp(0, operand)
    if name not in FUNCTIONS:
        return None
    operands = [values.get(argument, scalar_of(argument)) for argument in value.args]
    if any(operand is None for operand in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name](*operands))


def _name_of(value: Array) -> str | None:
    with np.errstate(all="ignore"):
        for name, function in ACTIVATIONS.items():
            if np.allclose(value, function(SAMPLES), rtol=TOLERANCE, atol=TOLERANCE):
                return name
        return _clip(value) or next(filter(None, (_fitted(value, kind, *fit) for kind, fit in FITS.items())), None)


def _clip(value: Array) -> str | None:
    """Return the name of the clip with these values."""
    low, high = value.min(), value.max()
    if not low < high or not np.array_equal(value, np.clip(SAMPLES, low, high)):
        return None
    bounds = [-np.inf if low == SAMPLES.min() else low, np.inf if high == SAMPLES.max() else high]
    return None if not np.isfinite(bounds).any() else CLIP + "_".join(f"{_bits(bound):08x}" for bound in bounds)


def _fitted(value: Array, kind: str, parameters: Callable[[_At], Sequence[float]], function: _Function) -> str | None:
    """Return the name of the activation of a kind with these values."""
    found = parameters(lambda x: float(value[np.argmin(np.abs(SAMPLES - x))]))
    numbers = [np.float32(f"{number:.7g}") for number in found]  # of a constant that was rounded to float32
    if not np.isfinite(numbers).all() or not numbers[0]:
        return None
    near = np.abs(SAMPLES) <= (MOST_OF_SINES if kind == SINE else np.inf)
    if (np.abs(value[~near]) > 1 + TOLERANCE).any():
        return None  # a sine of a small multiple is like a multiple there, which grows
    if not np.allclose(value[near], function(SAMPLES, *map(float, numbers))[near], rtol=TOLERANCE, atol=TOLERANCE):
        return None
    return kind + "_".join(f"{_bits(number):08x}" for number in numbers)


def _bits(number: float | np.floating[Any]) -> int:
    return int(np.float32(number).view(np.uint32))

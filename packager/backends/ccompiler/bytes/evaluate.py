"""Evaluates elementwise operators on all bytes with numpy: functions of float32 are rounded once, from float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.operations import Literal, Operation

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Types whose values numpy computes as C does; integers wrap around in both.
DTYPES = ("float32", "int32", "int8", "uint8")
ROOT_OF_2, ROOT_OF_2_OVER_PI = math.sqrt(2), math.sqrt(2 / math.pi)

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(ROOT_OF_2_OVER_PI * (x + 0.044715 * x**3)))


# Of float32, computed in float64.
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "nn.silu": lambda x: x * _sigmoid(x),
    "nn.gelu": lambda x: x * (0.5 + 0.5 * _erf(x / ROOT_OF_2)),
    "nn.gelu_tanh": _gelu_tanh,
}
# Rounded as C does.
_PLAIN: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs": np.abs,
    "negative": np.negative,
    "square": np.square,
    "nn.relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "bitwise_xor": np.bitwise_xor,
}
_FLOAT_ONLY: Mapping[str, Callable[..., Array]] = {
    "divide": np.divide,
    "quotient": np.divide,
    "sqrt": np.sqrt,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}
# Beyond them a conversion of a float to int32 has no defined result.
INT32 = np.iinfo(np.int32)


def evaluate(operation: Operation, operands: Sequence[Array]) -> Array | None:
    """Return the result of an operator of arrays of one shape, or None if it is unknown, or not finite.

    ``operands`` are those that are no numbers.
    """
    result = operation.result.dtype
    values = iter(operands)
    arguments = [
        np.asarray(operand.value, operand.dtype) if isinstance(operand, Literal) else next(values)
        for operand in operation.operands
    ]
    if result not in DTYPES or any(str(argument.dtype) not in DTYPES for argument in arguments):
        return None
    with np.errstate(all="ignore"):
        found = _compute(operation, arguments)
    if found is None or (found.dtype.kind == "f" and not np.isfinite(found).all()):
        return None
    return found if str(found.dtype) == result else None


def _compute(operation: Operation, arguments: Sequence[Array]) -> Array | None:
    name, first = operation.name, arguments[0]
    is_float = first.dtype == np.float32
    if name == "astype":
        if is_float and operation.result.dtype != "float32":
            within = (first > float(INT32.min)) & (first < float(INT32.max))
            return first.astype(np.int32).astype(operation.result.dtype) if within.all() else None
        return first.astype(operation.result.dtype)
    if name == "clip":
        low, high = operation.numbers
        if is_float:
            return np.clip(first, np.float32(low), np.float32(high))
        limits = np.iinfo(first.dtype)
        return np.clip(first, max(limits.min, int(low)), min(limits.max, int(high))).astype(first.dtype)
    if name in FUNCTIONS:
        return FUNCTIONS[name](first.astype(np.float64)).astype(np.float32) if is_float else None
    if name == "nn.leakyrelu":
        return np.where(first < 0, first * np.float32(operation.attributes.alpha), first) if is_float else None
    plain = _PLAIN.get(name) or (_FLOAT_ONLY.get(name) if is_float else None)
    return None if plain is None else np.asarray(plain(*arguments))

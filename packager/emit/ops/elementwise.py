"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from packager.bundle.dtypes import HALVES
from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, is_integer, rank

# Relax operator -> the ONNX one that computes the same of the same operands.
SAME: Mapping[str, str] = {
    **{name: name.capitalize() for name in ("abs", "ceil", "erf", "exp", "floor", "log", "round", "sigmoid", "sign")},
    **{name: name.capitalize() for name in ("sqrt", "tanh", "acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: name.capitalize() for name in ("cos", "cosh", "sin", "sinh", "tan", "add", "where", "equal", "less")},
    "divide": "Div",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "nn.relu": "Relu",
    "power": "Pow",
    "subtract": "Sub",
}


def _same(operator: str, writer: FunctionWriter, call: Any) -> str:
    return str(writer.node(operator, [writer.value(operand) for operand in call.args]))


def like(writer: FunctionWriter, value: float, expr: Any) -> str:
    """Return a scalar of the element type of ``expr``."""
    return writer.constant(value, dtype_of(expr))


def _not_equal(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Not", [_same("Equal", writer, call)]))


def _bitwise(operator: str, logical: str, writer: FunctionWriter, call: Any) -> str:
    operands = [writer.value(operand) for operand in call.args]
    if dtype_of(call.args[0]) == "bool":
        return str(writer.node(logical, operands))
    return str(writer.node(operator, operands, since=18))


def _shift(direction: str, writer: FunctionWriter, call: Any) -> str:
    if not dtype_of(call.args[0]).startswith("uint"):
        raise CannotWriteError("ONNX shifts unsigned integers only")
    return str(writer.node("BitShift", [writer.value(operand) for operand in call.args], direction=direction))


def _floor_divide(writer: FunctionWriter, call: Any) -> str:
    a, b = (writer.value(operand) for operand in call.args)
    if not is_integer(call.args[0]):
        return str(writer.node("Floor", [writer.node("Div", [a, b])]))
    return str(writer.node("Div", [writer.node("Sub", [a, writer.node("Mod", [a, b])]), b]))


def _floor_mod(writer: FunctionWriter, call: Any) -> str:
    a, b = (writer.value(operand) for operand in call.args)
    if is_integer(call.args[0]):
        return str(writer.node("Mod", [a, b]))
    quotient = writer.node("Floor", [writer.node("Div", [a, b])])
    return str(writer.node("Sub", [a, writer.node("Mul", [quotient, b])]))


def _mod(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Mod", [writer.value(operand) for operand in call.args], fmod=1))


def _square(writer: FunctionWriter, call: Any) -> str:
    data = writer.value(call.args[0])
    return str(writer.node("Mul", [data, data]))


def _rsqrt(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Reciprocal", [writer.node("Sqrt", [writer.value(call.args[0])])]))


def _trunc(writer: FunctionWriter, call: Any) -> str:
    data = writer.value(call.args[0])
    negative = writer.node("Less", [data, like(writer, 0, call.args[0])])
    return str(writer.node("Where", [negative, writer.node("Ceil", [data]), writer.node("Floor", [data])]))


def _is_infinite(writer: FunctionWriter, call: Any) -> str:
    data = writer.value(call.args[0])
    if dtype_of(call.args[0]) in HALVES:
        data = writer.cast(data, "float32")
    return str(writer.node("IsInf", [data]))


def _is_finite(writer: FunctionWriter, call: Any) -> str:
    beyond = writer.node("Or", [_is_infinite(writer, call), writer.node("IsNaN", [writer.value(call.args[0])])])
    return str(writer.node("Not", [beyond]))


def _cast(writer: FunctionWriter, call: Any) -> str:
    return writer.cast(writer.value(call.args[0]), str(call.attrs.dtype))


def _clip(writer: FunctionWriter, call: Any) -> str:
    data, dtype = call.args[0], dtype_of(call.args[0])
    bounds: list[Any] = [float(bound.value) for bound in call.args[1:]]
    if is_integer(data):
        limits = np.iinfo(dtype)
        bounds = [int(min(max(bound.value, limits.min), limits.max)) for bound in call.args[1:]]
    return str(writer.node("Clip", [writer.value(data), *(writer.constant(bound, dtype) for bound in bounds)]))


def _silu(writer: FunctionWriter, call: Any) -> str:
    data = writer.value(call.args[0])
    return str(writer.node("Mul", [data, writer.node("Sigmoid", [data])]))


def _gelu(writer: FunctionWriter, call: Any) -> str:
    (operand,) = call.args
    data = writer.value(operand)
    error = writer.node("Erf", [writer.node("Div", [data, like(writer, 2**0.5, operand)])])
    return _half_of(writer, operand, data, error)


def _gelu_tanh(writer: FunctionWriter, call: Any) -> str:
    (operand,) = call.args
    data = writer.value(operand)
    cube = writer.node("Mul", [data, writer.node("Mul", [data, data])])
    inner = writer.node("Add", [data, writer.node("Mul", [cube, like(writer, 0.044715, operand)])])
    scaled = writer.node("Mul", [inner, like(writer, (2 / np.pi) ** 0.5, operand)])
    return _half_of(writer, operand, data, writer.node("Tanh", [scaled]))


def _half_of(writer: FunctionWriter, operand: Any, data: str, curve: str) -> str:
    """Return data (1 + curve) / 2."""
    raised = writer.node("Add", [curve, like(writer, 1, operand)])
    return str(writer.node("Mul", [writer.node("Mul", [data, raised]), like(writer, 0.5, operand)]))


def _leaky_relu(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("LeakyRelu", [writer.value(call.args[0])], alpha=float(call.attrs.alpha)))


def _parametric_relu(writer: FunctionWriter, call: Any) -> str:
    data, slope = call.args
    ones = [1] * (rank(data) - 1 - int(call.attrs.axis) % rank(data))
    shaped = writer.reshape(writer.value(slope), [*extents(slope), *ones])
    return str(writer.node("PRelu", [writer.value(data), shaped]))


def _softplus(writer: FunctionWriter, call: Any) -> str:
    if float(call.attrs.beta) != 1:
        raise CannotWriteError("ONNX has Softplus with beta 1 only")
    return str(writer.node("Softplus", [writer.value(call.args[0])]))


def _selu(writer: FunctionWriter, call: Any) -> str:
    return str(writer.node("Selu", [writer.value(call.args[0])]))


def _softmax(operator: str, writer: FunctionWriter, call: Any) -> str:
    return str(writer.node(operator, [writer.value(call.args[0])], axis=int(call.attrs.axis)))


RULES: Rules = {
    **{name: partial(_same, operator) for name, operator in SAME.items()},
    "astype": _cast,
    "bitwise_and": partial(_bitwise, "BitwiseAnd", "And"),
    "bitwise_not": partial(_bitwise, "BitwiseNot", "Not"),
    "bitwise_or": partial(_bitwise, "BitwiseOr", "Or"),
    "bitwise_xor": partial(_bitwise, "BitwiseXor", "Xor"),
    "clip": _clip,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "isfinite": _is_finite,
    "isinf": _is_infinite,
    "isnan": partial(_same, "IsNaN"),
    "left_shift": partial(_shift, "LEFT"),
    "mod": _mod,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.leakyrelu": _leaky_relu,
    "nn.log_softmax": partial(_softmax, "LogSoftmax"),
    "nn.prelu": _parametric_relu,
    "nn.selu": _selu,
    "nn.silu": _silu,
    "nn.softmax": partial(_softmax, "Softmax"),
    "nn.softplus": _softplus,
    "not_equal": _not_equal,
    "right_shift": partial(_shift, "RIGHT"),
    "rsqrt": _rsqrt,
    "square": _square,
    "trunc": _trunc,
}

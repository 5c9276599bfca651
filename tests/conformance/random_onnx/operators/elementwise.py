"""Operators on elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.conformance.random_onnx.growth import Growth, RejectedError, Value
from tests.conformance.random_onnx.registry import writes
from tests.conformance.random_onnx.session import CARRIED

Array = np.ndarray[Any, Any]
STEPS = ("Ceil", "Floor", "Round", "Sign")


@writes(
    *("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh"),
    *("Cosh", "Asinh", "Erf", "Not", "HardSwish", "Mish", "BitwiseNot", "Identity", "IsNaN", *STEPS),
)
def unary(g: Growth, op: str) -> None:
    """Operators without attributes."""
    g.node(op, [g.value(g.types(op), exact=op in STEPS)], steps=op in STEPS)


DOMAINS = {
    "Log": (lambda a: bool(np.all(a > 0.05)), lambda a: np.abs(a) + 0.25),
    "Sqrt": (lambda a: bool(np.all(a >= 0.05)), lambda a: np.abs(a) + 0.25),
    "Reciprocal": (lambda a: bool(np.all(np.abs(a) > 0.05)), lambda a: np.abs(a) + 0.25),
    "Asin": (lambda a: bool(np.all(np.abs(a) < 0.95)), lambda a: np.tanh(a) * 0.9),
    "Acos": (lambda a: bool(np.all(np.abs(a) < 0.95)), lambda a: np.tanh(a) * 0.9),
    "Atanh": (lambda a: bool(np.all(np.abs(a) < 0.95)), lambda a: np.tanh(a) * 0.9),
    "Acosh": (lambda a: bool(np.all(a > 1.05)), lambda a: np.abs(a) + 1.25),
}


@writes(*DOMAINS)
def partial(g: Growth, op: str) -> None:
    """Functions that are not defined everywhere: beyond it in models with special values only."""
    fits, make = (None, None) if g.special else DOMAINS[op]
    g.node(op, [g.value(g.types(op), where=fits, make=make, exact=g.special)], steps=g.special)


PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu", "Celu"), ("alpha",)),
    "Selu": ("alpha", "gamma"),
    "HardSigmoid": ("alpha", "beta"),
    "Shrink": ("lambd", "bias"),
}


@writes(*PARAMETERS)
def with_parameters(g: Growth, op: str) -> None:
    """Activations with attributes, some of them left to their defaults."""
    steps = op in ("ThresholdedRelu", "Shrink")
    attributes = {name: g.real(0.25, 2) for name in PARAMETERS[op] if g.chance(0.7)}
    types = [t for t in g.types(op) if not t.startswith("uint")]  # Shrink leads below zero
    g.node(op, [g.value(types, exact=steps)], steps=steps, **attributes)


@writes("Gelu")
def gelu(g: Growth, op: str) -> None:
    """Both of its forms."""
    g.node(op, [g.value(g.types(op))], approximate=g.choose((None, "none", "tanh")))


@writes("IsInf")
def is_inf(g: Growth, op: str) -> None:
    """Either sign, both or none."""
    attributes = {name: g.integer(0, 1) for name in ("detect_negative", "detect_positive") if g.chance(0.5)}
    g.node(op, [g.value(g.types(op))], **attributes)


def partner(g: Growth, shape: tuple[int, ...], wider: bool = True) -> tuple[int, ...]:
    """Return a shape that broadcasts against another one; not beyond it unless ``wider``."""
    found = list(shape[g.integer(0, len(shape)) :]) if g.chance(0.4) else list(shape)
    for axis in range(len(found)):
        if g.chance(0.25):
            found[axis] = 1
        elif wider and found[axis] == 1 and g.chance(0.5):
            found[axis] = g.integer(1, 4)
    if wider and len(found) == len(shape) < 6 and g.chance(0.15):
        found.insert(0, g.integer(1, 3))
    return tuple(found)


def operand(g: Growth, x: Value, **options: Any) -> Value:
    """Return a value of the same type that broadcasts against ``x``."""
    same = [v for v in g.values if v.dtype == x.dtype and v.shape == x.shape]
    if not options and same and g.chance(0.4):
        return g.choose(same)
    return g.value([x.dtype], shape=partner(g, x.shape), **options)


@writes("Add", "Sub", "Mul", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def binary(g: Growth, op: str) -> None:
    """Two operands that broadcast, in either order."""
    x = g.value(g.types(op))
    pair = [x, operand(g, x)]
    g.node(op, pair[:: g.choose((1, -1))])


@writes("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def comparison(g: Growth, op: str) -> None:
    """Comparisons are steps."""
    x = g.value(g.types(op), exact=True)
    g.node(op, [x, operand(g, x, exact=True)], steps=True)


@writes("Div", "Mod")
def division(g: Growth, op: str) -> None:
    """Divisors of integers are neither 0 nor -1: onnxruntime ends the process for some."""
    x = g.value(g.types(op), exact=op == "Mod")
    real = x.dtype.startswith(("float", "bfloat"))

    def fits(a: Array) -> bool:
        return bool(np.all(np.abs(a) > 0.2)) if real else bool(np.all((a > 0) | (a.astype(np.int64) < -1)))

    def make(a: Array) -> Array:
        return np.where(np.abs(a) > 0.2, a, 0.5) if real else np.where(a > 0, a, 3)

    guarded = {} if real and g.special else {"where": fits, "make": make}
    y = g.value([x.dtype], shape=partner(g, x.shape), exact=op == "Mod", **guarded)  # type: ignore[arg-type]
    if op == "Div":
        g.node(op, [x, y])
    else:
        g.node(op, [x, y], steps=True, fmod=1 if real else g.choose((None, 0, 1)))


@writes("Pow")
def power(g: Growth, op: str) -> None:
    """Small exponents, of another type at times; whole ones unless the base is positive."""
    x = g.value(g.types(op))
    types = [x.dtype] if g.version(op) < 12 or g.chance(0.5) else g.types(op, 1)
    exponent = np.asarray(g.rng.integers(0, 4, partner(g, x.shape)))
    dtype = g.dtype([t for t in types if t not in CARRIED])
    g.node(op, [x, g.fresh(exponent.astype(dtype), dtype)])


@writes("BitShift")
def bit_shift(g: Growth, op: str) -> None:
    """Counts below the width of the type."""
    x = g.value(g.types(op))
    count = np.asarray(g.rng.integers(0, 8 * x.array.itemsize, partner(g, x.shape))).astype(x.dtype)
    g.node(op, [x, g.fresh(count)], direction=g.choose(("LEFT", "RIGHT")))


@writes("Max", "Min", "Sum", "Mean")
def variadic(g: Growth, op: str) -> None:
    """One to four operands, some of them twice."""
    x = g.value(g.types(op))
    operands = [x]
    for _ in range(g.integer(0, 3)):
        operands.append(g.choose(operands) if g.chance(0.2) else operand(g, x))
    g.node(op, operands)


@writes("PRelu")
def prelu(g: Growth, op: str) -> None:
    """The slope does not widen the data."""
    x = g.value(g.types(op))
    g.node(op, [x, g.value([x.dtype], shape=partner(g, x.shape, wider=False))])


@writes("Where")
def where(g: Growth, op: str) -> None:
    """Three shapes that broadcast."""
    x = g.value(g.types(op, 1))
    g.node(op, [g.value(["bool"], shape=partner(g, x.shape)), x, operand(g, x)])


@writes("Clip")
def clip(g: Growth, op: str) -> None:
    """Limits by attributes before version 11, by inputs after; either of them may be missing."""
    x = g.value(g.types(op))
    low, high = sorted((g.integer(-3, 3), g.integer(-3, 6)))
    if g.version(op) < 11:
        attributes = {name: float(v) for name, v in (("min", low), ("max", high)) if g.chance(0.7)}
        g.node(op, [x], **attributes)
        return
    if x.dtype in CARRIED:
        raise RejectedError(x.dtype)
    low, high = (abs(low), abs(low) + high - low) if x.dtype.startswith("u") else (low, high)
    limits = [g.fresh(np.asarray(v, x.dtype), constant=0.8) if g.chance(0.7) else None for v in (low, high)]
    g.node(op, [x, *limits])


@writes("Cast", "CastLike")
def cast(g: Growth, op: str) -> None:
    """From anything to anything; what is no number, or beyond integers, is not made one."""
    narrow = g.opset >= 19 and op == "Cast"
    target = g.dtype([*g.types(op), *(name for name in CARRIED if narrow and name.startswith("float8"))])
    integers = not target.startswith(("float", "bfloat")) and target != "bool"

    def fits(a: Array) -> bool:
        limits = np.iinfo(target)
        return bool(np.all(np.isfinite(a) & (a > max(limits.min, -(2**31))) & (a < min(limits.max, 2**31))))

    def make(a: Array) -> Array:
        return np.where(np.isfinite(a) & (np.abs(a) < 100), np.abs(a), 1)

    options: dict[str, Any] = {"where": fits, "make": make} if integers else {}
    x = g.value(g.types(op), exact=not target.startswith("float") or target.startswith("float8"), **options)
    steps = not target.startswith("float")
    if op == "CastLike":
        g.node(op, [x, g.value([target])], steps=steps)
        return
    code = CARRIED.get(target) or helper.np_dtype_to_tensor_dtype(np.dtype(target))
    saturate = g.choose((None, 0, 1)) if target.startswith("float8") else None
    made = g.node(op, [x], steps=steps, to=code, saturate=saturate)
    if target.startswith("float8"):
        g.node(op, made, to=helper.np_dtype_to_tensor_dtype(np.dtype("float32")))
        g.values.remove(made[0])

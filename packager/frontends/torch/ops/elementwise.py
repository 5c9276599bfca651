"""Converters of elementwise torch operators, and of those that create tensors.

Type promotion follows torch: operands are cast to the type of the result, those of comparisons to their common type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from packager.frontends.torch.ops.integers import INTEGERS, power_of_integers
from packager.frontends.torch.ops.program import argument, operator_of

_R = relax.op


def _unary(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        return function(importer.tensor(node.args[0], importer.dtype(node)))

    return convert


# What is done to truth values, which LLVM has no arithmetic of.
_OF_BOOLS: Mapping[Any, Any] = {
    _R.add: _R.logical_or,
    _R.maximum: _R.logical_or,
    _R.multiply: _R.logical_and,
    _R.minimum: _R.logical_and,
}


def _binary(function: Callable[[Any, Any], Any], *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    """Return a converter of ``first op alpha * second``; only add and sub have an ``alpha``."""

    def convert(importer: Any, node: Any) -> Any:
        dtype = importer.dtype(node)
        first, second = (importer.tensor(operand, dtype) for operand in node.args[:2])
        alpha = argument(node, 2, "alpha", 1)
        if swapped:
            first, second = second, first
        if alpha != 1:
            scaled = first if swapped else second
            scaled = importer.emit(_R.multiply(scaled, importer.tensor(alpha, dtype)))
            first, second = (scaled, second) if swapped else (first, scaled)
        return (_OF_BOOLS.get(function, function) if dtype == "bool" else function)(first, second)

    return convert


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a converter that compares truth values as integers: LLVM has no comparison of vectors of them."""

    def convert(importer: Any, node: Any) -> Any:
        values = [operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand for operand in node.args]
        values = [0 if isinstance(value, torch.SymInt) else value for value in values]
        dtype = importer.element_type(torch.result_type(*values))
        operands = [importer.tensor(operand, dtype) for operand in node.args]
        return function(*(importer.cast(operand, "uint8" if dtype == "bool" else dtype) for operand in operands))

    return convert


def _equality(function: Callable[[Any, Any], Any], *, same: bool) -> Callable[[Any, Any], Any]:
    """Return a converter that tests a float compared with itself for NaN: TVM takes it for equal."""
    compare = _comparison(function)

    def convert(importer: Any, node: Any) -> Any:
        if node.args[0] is not node.args[1] or not importer.dtype(node.args[0]).startswith(("float", "bfloat")):
            return compare(importer, node)
        unknown = importer.emit(_R.isnan(importer.tensor(node.args[0])))
        return _R.logical_not(unknown) if same else unknown

    return convert


def _bitwise(bits: Callable[..., Any], logical: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        dtype = importer.dtype(node)
        return (logical if dtype == "bool" else bits)(*(importer.tensor(operand, dtype) for operand in node.args))

    return convert


def _logical(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        return function(*(importer.tensor(operand, "bool") for operand in node.args))

    return convert


def _power(importer: Any, node: Any) -> Any:
    dtype = importer.dtype(node)
    base, exponent = (importer.tensor(operand, dtype) for operand in node.args)
    if node.args[1] == 2:
        return _R.multiply(base, base)
    if node.args[1] == 0.5:
        return _R.sqrt(base)
    if dtype.startswith(("int", "uint")):
        return power_of_integers(importer, node)
    return _R.power(base, exponent)


def _divide_mode(importer: Any, node: Any) -> Any:
    dtype, mode = importer.dtype(node), node.kwargs.get("rounding_mode")
    first, second = (importer.tensor(operand, dtype) for operand in node.args[:2])
    if mode is None:
        return _R.divide(first, second)
    if mode == "floor":
        return _floor_divide(importer, node)
    quotient = importer.emit(_R.divide(first, second))
    return quotient if dtype.startswith(("int", "uint")) else _R.trunc(quotient)


def _floor_divide(importer: Any, node: Any) -> Any:
    dtype = importer.dtype(node)
    first, second = (importer.tensor(operand, dtype) for operand in node.args[:2])
    if not dtype.startswith(("int", "uint")):
        return _R.floor(importer.emit(_R.divide(first, second)))
    return _R.floor_divide(first, second)


def _clamp(importer: Any, node: Any) -> Any:
    dtype = importer.dtype(node)
    result = importer.tensor(node.args[0], dtype)
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    if low is not None:
        result = importer.emit(_R.maximum(result, importer.tensor(low, dtype)))
    if high is not None:
        result = importer.emit(_R.minimum(result, importer.tensor(high, dtype)))
    return result


def _to_copy(importer: Any, node: Any) -> Any:
    return importer.tensor(node.args[0], importer.dtype(node))


def _where(importer: Any, node: Any) -> Any:
    """Convert where(condition, first, second), or masked_fill(second, condition, first)."""
    dtype = importer.dtype(node)
    condition, first, second = node.args
    if operator_of(node).startswith("masked_fill"):
        condition, first, second = first, second, condition
    return _R.where(importer.tensor(condition, "bool"), importer.tensor(first, dtype), importer.tensor(second, dtype))


# Operators that create tensors.


def _arange(importer: Any, node: Any) -> Any:
    dtype = importer.dtype(node)
    (count,) = importer.shape(node)
    values = [importer.value(operand) for operand in node.args]
    start = values[0] if len(values) > 1 else 0
    step = values[2] if len(values) > 2 else 1
    if dtype.startswith("int") and step == 1:
        return importer.cast(importer.emit(_R.arange(start, start + count, 1, "int64")), dtype)
    steps = importer.cast(importer.emit(_R.arange(0, count, 1, "int64")), dtype)
    scaled = importer.emit(_R.multiply(steps, importer.tensor(step, dtype)))
    return _R.add(scaled, importer.tensor(start, dtype))


def _filled(index: int | None, constant: float = 0) -> Callable[[Any, Any], Any]:
    """Return a converter of a tensor filled with the argument at ``index``, or with ``constant``."""

    def convert(importer: Any, node: Any) -> Any:
        value = importer.tensor(constant if index is None else node.args[index], importer.dtype(node))
        shape = importer.shape(node)
        return _R.broadcast_to(value, shape) if shape else value

    return convert


# Operators of one operand that Relax calls by the same name.
UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
_ARITHMETIC = {
    "add": _R.add,
    "sub": _R.subtract,
    "mul": _R.multiply,
    "div": _R.divide,
    "fmod": _R.mod,
}
_COMPARISONS = {
    "eq": _R.equal,
    "ne": _R.not_equal,
    "lt": _R.less,
    "le": _R.less_equal,
    "gt": _R.greater,
    "ge": _R.greater_equal,
}
_BITS = {
    "bitwise_and": (_R.bitwise_and, _R.logical_and),
    "bitwise_or": (_R.bitwise_or, _R.logical_or),
    "bitwise_xor": (_R.bitwise_xor, _R.logical_xor),
}
_BITS |= {f"__{name.removeprefix('bitwise_')}__": pair for name, pair in _BITS.items()}
_KINDS = ("Tensor", "Scalar")

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{f"{name}.default": _unary(getattr(_R, name)) for name in UNARY},
    "neg.default": _unary(_R.negative),
    **{f"{name}.{kind}": _binary(function) for name, function in _ARITHMETIC.items() for kind in _KINDS},
    **{f"{name}.{kind}": _comparison(function) for name, function in _COMPARISONS.items() for kind in _KINDS},
    "eq.Tensor": _equality(_R.equal, same=True),
    "ne.Tensor": _equality(_R.not_equal, same=False),
    **{f"{name}.{kind}": _bitwise(*pair) for name, pair in _BITS.items() for kind in _KINDS},
    **INTEGERS,
    **{f"rsub.{kind}": _binary(_R.subtract, swapped=True) for kind in _KINDS},
    "bitwise_not.default": _bitwise(_R.bitwise_not, _R.logical_not),
    "maximum.default": _binary(_R.maximum),
    "minimum.default": _binary(_R.minimum),
    "max.other": _binary(_R.maximum),
    "min.other": _binary(_R.minimum),
    "logical_not.default": _logical(_R.logical_not),
    "logical_and.default": _logical(_R.logical_and),
    "logical_or.default": _logical(_R.logical_or),
    "logical_xor.default": _logical(_R.logical_xor),
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "pow.Scalar": _power,
    "div.Tensor_mode": _divide_mode,
    "div.Scalar_mode": _divide_mode,
    "floor_divide.default": _floor_divide,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "clamp_min.default": _clamp,
    "clamp_max.default": _binary(_R.minimum),
    "_to_copy.default": _to_copy,
    "prims::convert_element_type.default": _to_copy,
    "lift_fresh_copy.default": _to_copy,
    "where.self": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.Scalar": _where,
    "masked_fill.Scalar": _where,
    "masked_fill.Tensor": _where,
    "arange.default": _arange,
    "arange.start": _arange,
    "arange.start_step": _arange,
    "full.default": _filled(1),
    "full_like.default": _filled(1),
    "new_full.default": _filled(2),
    "scalar_tensor.default": _filled(0),
    **{f"{kind}.default": _filled(None) for kind in ("zeros", "zeros_like", "new_zeros")},
    **{f"{kind}.default": _filled(None, 1) for kind in ("ones", "ones_like", "new_ones")},
}

"""Operators behind a convolution that compute channel by channel: bias, batch norm, activation."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from packager.graph.dataflow import Dataflow, extents_of, same, scalar_of, static_shape_of
from packager.graph.identity import IdentitySet

UNARY = (
    "nn.relu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.leakyrelu",
    "sigmoid",
    "tanh",
    "exp",
    "abs",
    "clip",
    "astype",
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def chain_after(
    flow: Dataflow, constants: IdentitySet, variable: Any, channels: int
) -> tuple[tuple[relax.Call, ...], Any]:
    """Return the operators that follow a convolution channel by channel, and the variable of the last.

    Its type is that of the first: a pair of casts, as around a bias in half precision, is whole.
    """
    chain: list[relax.Call] = []
    dtype, ends = variable.ty.dtype, [(0, variable)]
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        call = flow.call(readers[0], *UNARY, *BINARY)
        if call is None or not same(extents_of(call), extents_of(variable)):
            break
        others = [operand for operand in call.args if not operand.same_as(variable)]
        reads_twice = len(others) != len(call.args) - 1
        if reads_twice or not all(_is_per_channel(constants, operand, channels, call.ty.ndim) for operand in others):
            break
        chain.append(call)
        variable = readers[0]
        if variable.ty.dtype == dtype:
            ends.append((len(chain), variable))
    count, last = ends[-1]
    return tuple(chain[:count]), last


def _is_per_channel(constants: IdentitySet, operand: Any, channels: int, rank: int) -> bool:
    """Whether an operand is a number, or a constant with one element, or one for each channel."""
    if scalar_of(operand) is not None or not isinstance(operand.ty, relax.TensorType):
        return True
    shape = static_shape_of(operand)
    if shape is None or operand not in constants:
        return False
    padded = (1,) * (rank - len(shape)) + shape
    return math.prod(padded) == padded[1] and padded[1] in (1, channels)

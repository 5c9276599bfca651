"""Match the RMS normalization of rows (arXiv:1910.07467) that a product alone reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import Dataflow, in_order, operator_of, shape_of
from packager.graph.identity import IdentitySet
from packager.graph.normalize import OPERATOR, attributes_of_call

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class RowNorm:
    """``result = data / sqrt(mean(data^2) + epsilon) * gains``, along rows, with casts between.

    ``gains``, a constant of one element for each of a row, may be None; 2 to the power of ``doublings`` is 1 or more,
    and no less than any of them. ``variables`` are bound to its operators, in order. Data and result have one type of
    16 bits.
    """

    data: Any
    gains: Any
    doublings: int
    epsilon: float
    variables: tuple[Any, ...]


def find_row_norm(flow: Dataflow, result: Any, product: Sequence[Any]) -> RowNorm | None:
    """Return the normalization that makes ``result``, which the variables of ``product`` alone read; or None."""
    dtype, shape = str(result.ty.dtype), shape_of(result)
    if dtype not in HALVES or not shape or not isinstance(shape[-1], int):
        return None
    variables, gains, variable = [], None, result
    inside = IdentitySet(product)
    while (call := flow.call(variable, "astype", "multiply", OPERATOR)) is not None:
        if flow.is_result(variable) or not all(reader in inside for reader in flow.readers(variable)):
            return None
        variables.append(variable)
        inside.add(variable)
        source = call.args[0]
        if operator_of(call) == OPERATOR:
            norm = attributes_of_call(call.attrs)
            if norm.centered or not norm.of_rows(len(shape)) or str(source.ty.dtype) != dtype:
                return None
            doublings = 0 if gains is None else _doublings(flow.array(gains))
            if doublings is None:
                return None
            return RowNorm(source, gains, doublings, norm.epsilon, in_order(flow, variables))
        if operator_of(call) == "multiply":
            factors = [each for each in call.args if _is_vector(flow, each, shape[-1])]
            if gains is not None or len(factors) != 1:
                return None
            (gains,) = factors
            source = next(each for each in call.args if not each.same_as(gains))
        variable = source
    return None


def _doublings(gains: Array | None) -> int | None:
    """Return the exponent of the least power of two from 1 on that no gain exceeds; None if they are not known."""
    greatest = None if gains is None else float(np.abs(gains.astype(np.float32)).max())
    if greatest is None or not math.isfinite(greatest):
        return None
    return max(0, math.ceil(math.log2(greatest))) if greatest > 0 else 0


def _is_vector(flow: Dataflow, operand: Any, length: int) -> bool:
    """Whether it is a constant with an element for each of a row."""
    if not isinstance(operand, relax.Var) or not flow.is_constant(operand):
        return False
    shape = shape_of(operand) or ()
    return shape[-1:] == (length,) and all(extent == 1 for extent in shape[:-1])

"""Matches the operators around a softmax: scores before it, weighted values after it.

Exporters emit casts, views, scales and a mask between the softmax and the two matmuls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.graph.attention.heads import scaled_by
from packager.graph.attention.sinks import drops_sinks, scores_and_sinks
from packager.graph.dataflow import Dataflow, is_widening, operator_of, scalar_of

LONGEST = 16  # operators between a matmul and its softmax


@dataclass(frozen=True)
class Scores:
    """The operators between the first matmul and the softmax: ``scale * product + mask``.

    ``covered`` are the variables between the two; ``mask`` is None if nothing is added. Scores are replaced by ``fill``
    where ``keep`` is false (true if ``inverted``), before the mask is added. With a ``softcap``, they are that of its
    tanh(scores / softcap) before both. ``sinks`` [..., 1] follow them in the softmax, unless they are None.
    """

    product: Any
    covered: tuple[Any, ...]
    scale: float
    mask: Any
    keep: Any = None
    inverted: bool = False
    fill: float = 0.0
    softcap: float = 0.0
    sinks: Any = None


def find_scores(flow: Dataflow, softmax: Any, *, widely: bool = False) -> Scores | None:
    """Trace the operand of a softmax back to the matmul of queries and keys; ``widely`` also through ``where``."""
    variable, scale, mask, softcap = flow.value(softmax).args[0], 1.0, None, 0.0
    keep, inverted, fill, sinks = None, False, 0.0, None
    covered: list[Any] = []
    if widely and (both := scores_and_sinks(flow, variable)) is not None:
        covered.append(variable)
        variable, sinks = both
    for _ in range(LONGEST):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            scale *= softcap or 1.0
            return Scores(variable, tuple(covered), scale, mask, keep, inverted, fill, softcap, sinks)
        covered.append(variable)
        if name in ("astype", "reshape"):
            variable = call.args[0]
        elif (factor := scaled_by(call)) is not None:
            variable, number = factor
            scale *= number
        elif name == "tanh" and widely and softcap == 0.0 and scale > 0.0:
            variable, softcap, scale = call.args[0], scale, 1.0
        elif name == "add" and mask is None and keep is None and scale == 1.0 and softcap == 0.0:
            sides = [side for side in call.args if _comes_from_product(flow, side)]
            if len(sides) != 1:
                return None
            added = call.args[1] if sides[0].same_as(call.args[0]) else call.args[0]
            shift = scalar_of(added)
            if shift is not None and not math.isfinite(shift):
                return None
            mask = added if shift is None else None  # softmax is invariant under a constant shift
            variable = sides[0]
            if widely and is_widening(flow.value(mask)) and flow.is_read_once(mask):  # kernels read it as it is
                covered.append(mask)
                (mask,) = flow.value(mask).args
        elif name == "where" and widely and keep is None and scale == 1.0 and softcap == 0.0:
            keep, first, second = call.args
            inverted = scalar_of(first) is not None
            filled = scalar_of(first if inverted else second)
            if filled is None:
                return None
            variable, fill = second if inverted else first, filled
        else:
            return None
    return None


def _comes_from_product(flow: Dataflow, variable: Any) -> bool:
    """Whether a value is a matmul, through views, casts, scales, tanh and ``where``."""
    for _ in range(LONGEST):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            return True
        if name not in ("astype", "reshape", "multiply", "divide", "where", "tanh"):
            return False
        arguments = call.args[1:] if name == "where" else call.args[:2]
        tensors = [argument for argument in arguments if isinstance(argument, relax.Var)]
        if len(tensors) != 1:
            return False
        (variable,) = tensors
    return False


@dataclass(frozen=True)
class Weighted:
    """The operators from the softmax to the second matmul: ``product``, and the variables ``covered`` before it.

    With ``safe`` the weights of a row without a finite score, which are NaN, are replaced by zeros.
    """

    product: Any
    covered: tuple[Any, ...]
    safe: bool = False


def find_weighted(flow: Dataflow, softmax: Any, *, widely: bool = False, sinks: bool = False) -> Weighted | None:
    """Return what multiplies the weights with the values; ``widely`` also where NaN is replaced before, and after the
    last column is dropped if that is of ``sinks``."""
    variable = softmax
    covered: list[Any] = []
    replaced = without_nan(flow, softmax) if widely else None
    safe = replaced is not None
    if replaced is not None:
        covered += replaced
        variable = replaced[-1]
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        call = flow.value(readers[0])
        name = operator_of(call)
        if name == "matmul" and call.args[0].same_as(variable):
            return None if sinks else Weighted(readers[0], tuple(covered), safe)
        if sinks and drops_sinks(flow, readers[0]):
            sinks = False
        elif name not in ("astype", "reshape"):
            return None
        covered.append(readers[0])
        variable = readers[0]
    return None


def without_nan(flow: Dataflow, weights: Any) -> tuple[Any, ...] | None:
    """Return the variables of ``where(isnan(weights), 0, weights)``, that last, if nothing else reads the weights.

    The test may read weights of half precision after a cast.
    """
    readers = flow.readers(weights)
    if flow.is_result(weights) or len(readers) != 2:
        return None
    *tests, result = readers
    if flow.call(tests[0], "astype") is not None and not flow.is_result(tests[0]):
        tests += flow.readers(tests[0])
    choice = flow.call(result, "where")
    if flow.call(tests[-1], "isnan") is None or choice is None or len(tests) > 2 or len(flow.readers(tests[-1])) != 1:
        return None
    condition, zero, other = choice.args
    fits = condition.same_as(tests[-1]) and other.same_as(weights) and scalar_of(zero) == 0.0
    return (*tests, result) if fits else None

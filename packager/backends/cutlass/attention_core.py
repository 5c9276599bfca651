"""Around a softmax: what computes the scores before it, what becomes of the weights after it.

Exporters write casts, views, scales and a mask between the softmax and the two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.backends.cutlass.graph import same, scalar_of, shape_of
from packager.dataflow import Dataflow, operator_of


@dataclass(frozen=True)
class Scores:
    """What is computed between the first product and the softmax: ``scale * product + mask``.

    ``covered`` are the variables between the two; ``mask`` is None where nothing is added.
    """

    product: Any
    covered: tuple[Any, ...]
    scale: float
    mask: Any


def find_scores(flow: Dataflow, softmax: Any) -> Scores | None:
    """Follow the operand of a softmax back to the product of queries and keys."""
    variable, scale, mask = flow.value(softmax).args[0], 1.0, None
    covered: list[Any] = []
    for _ in range(12):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            return Scores(variable, tuple(covered), scale, mask)
        covered.append(variable)
        if name in ("astype", "reshape"):
            variable = call.args[0]
        elif name in ("multiply", "divide"):
            number = scalar_of(call.args[1])
            first = 0
            if number is None and name == "multiply":
                number, first = scalar_of(call.args[0]), 1
            if not number:
                return None
            scale *= number if name == "multiply" else 1 / number
            variable = call.args[first]
        elif name == "add" and mask is None and scale == 1.0:
            sides = [side for side in call.args if _comes_from_product(flow, side)]
            if len(sides) != 1:
                return None
            mask = call.args[1] if sides[0].same_as(call.args[0]) else call.args[0]
            variable = sides[0]
        else:
            return None
    return None


def _comes_from_product(flow: Dataflow, variable: Any) -> bool:
    """Whether a value is a product, but for views, casts and a scale."""
    for _ in range(8):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            return True
        if name not in ("astype", "reshape", "multiply", "divide"):
            return False
        tensors = [argument for argument in call.args[:2] if isinstance(argument, relax.Var)]
        if len(tensors) != 1:
            return False
        (variable,) = tensors
    return False


def find_weighted(flow: Dataflow, softmax: Any) -> tuple[Any, list[Any]] | None:
    """Return the product of the weights with the values, and what stands before it."""
    variable = softmax
    covered: list[Any] = []
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        call = flow.value(readers[0])
        name = operator_of(call)
        if name == "matmul" and call.args[0].same_as(variable):
            return readers[0], covered
        if name not in ("astype", "reshape"):
            return None
        covered.append(readers[0])
        variable = readers[0]
    return None


def find_result(flow: Dataflow, product: Any, shape: Sequence[Any]) -> tuple[bool, list[Any]]:
    """Return whether rows come before heads in the result, and the views after the product that make it so.

    ``shape`` is that of the values, [batch, heads, rows, depth].
    """
    variable, covered = product, []
    best: tuple[bool, list[Any]] = (False, [])
    moved = False
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        variable = readers[0]
        call = flow.value(variable)
        name = operator_of(call)
        covered.append(variable)
        if name == "permute_dims" and not moved:
            source = shape_of(call.args[0])
            if not source or len(source) != 4 or [int(axis) for axis in call.attrs.axes] != [0, 2, 1, 3]:
                break
            if not same(tuple(source[1:2]), tuple(shape[1:2])):
                break
            moved = True
        elif name != "reshape":
            break
        best = (moved, list(covered))
    return best

"""Epilogues that tiles compute in registers: a bias for each column, then bounds, as of ReLU.

A tile then writes where the result goes, and no block is read once more: with few steps that takes as long as a quarter
of the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packager.backends.ccompiler.core.expressions import literal
from packager.backends.ccompiler.core.operations import Literal, Operation, Tensor, Use
from packager.backends.ccompiler.core.shapes import equal, product

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.functions import FunctionDraft
    from packager.backends.ccompiler.core.stages import Stage


@dataclass(frozen=True)
class Finish:
    """What is added to each column of float32 sums, if anything, the bounds of what is stored, and where that goes."""

    result: Tensor
    bias: Tensor | None
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound."""
        return self.low > -math.inf or self.high < math.inf

    @property
    def is_last(self) -> bool:
        """Whether nothing can be added any more."""
        return self.bias is not None or self.is_bounded

    def values(self, draft: FunctionDraft, first: str, pitch: str) -> dict[str, Any]:
        """Return C for the template: the result's row ``first`` and on, ``pitch`` elements apart, and the fields."""
        bounds = [literal(number, "float32") for number in (self.low, self.high)]
        bias = f"{draft.tensor(self.bias, False)} + start" if self.bias else "0"
        bounded = (self.low > -math.inf) + 2 * (self.high < math.inf)
        fields = f"{bias}, {bounds[0]}, {bounds[1]}, {bounded}"
        return {"place": f"{draft.tensor(self.result, True)} + ({first}) * {pitch} + start", "fields": fields}


def find_finish(stage: Stage, anchor: Operation) -> Finish | None:
    """Return the epilogue of a stage if tiles can compute it and its result is all that the stage stores."""
    finish = Finish(anchor.result, None, -math.inf, math.inf)
    for operation in stage.after:
        bounds = _bounds(operation)
        others = [use for use in operation.uses if use.tensor.index != finish.result.index]
        if bounds is not None and not others and bounds[0] <= finish.high:
            finish = replace(finish, low=max(finish.low, bounds[0]), high=min(finish.high, bounds[1]))
        elif operation.name == "add" and len(operation.operands) == 2 and len(others) == 1 and not finish.is_last:
            if not is_of_columns(others[0], anchor):
                return None
            finish = replace(finish, bias=others[0].tensor)
        else:
            return None
        finish = replace(finish, result=operation.result)
    is_all = stage.placed is None and [tensor.index for tensor in stage.stored] == [finish.result.index]
    return finish if is_all and anchor.result.dtype == finish.result.dtype == "float32" else None


def _bounds(operation: Operation) -> tuple[float, float] | None:
    """Return the numbers between which an operator keeps its operand; None if it does something else."""
    numbers = [operand.value for operand in operation.operands if isinstance(operand, Literal)]
    match operation.name, numbers:
        case "nn.relu", []:
            return 0.0, math.inf
        case "clip", []:
            low, high = operation.numbers
            return (low, high) if low <= high else None
        case "maximum", [number]:
            return float(number), math.inf
        case "minimum", [number]:
            return -math.inf, float(number)
    return None


def is_of_columns(use: Use, anchor: Operation) -> bool:
    """Whether an operand has an element for each column of a product."""
    columns = anchor.result.shape[-1]
    return use.tensor.dtype == "float32" and bool(
        use.shape and equal(use.shape[-1], columns) and equal(product(use.shape), columns)
    )

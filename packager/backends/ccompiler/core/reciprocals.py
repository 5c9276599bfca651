"""Replaces divisions by numbers where products are as accurate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from packager.backends.ccompiler.core.operations import Literal, Operation, Tensor, Use

# A quotient of a finite number and a literal, by a reciprocal of twice the bits.
QUOTIENT = "quotient"
# Functions whose results are finite, or NaN.
BOUNDED = frozenset({"sigmoid", "tanh", "erf", "sin", "cos"})
# Divisors whose reciprocal, and what rounding takes from it, are normal numbers.
LEAST_DIVISOR, GREATEST_DIVISOR = 2.0**-64, 2.0**64


def multiply_by_reciprocals(operations: Sequence[Operation], results: Sequence[Tensor]) -> list[Operation]:
    """Replace divisions by a number that only ``erf`` reads, as in GELU, by products, which are as accurate there.

    Those that are only rounded to int32, as in ``QuantizeLinear``, and those of bounded numbers, as of hard swish,
    become quotients by a reciprocal of twice the bits. Where what is rounded is bounded first, the dividend is bounded
    in its place: infinity times the reciprocal is NaN.
    """
    made = {operation.result.index: operation for operation in operations}
    readers: dict[int, list[Operation | None]] = {tensor.index: [None] for tensor in results}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, []).append(operation)
    found = _Readers(readers)
    replaced: dict[int, Operation] = {}
    for operation in operations:
        number = operation.operands[-1] if operation.operands else None
        if operation.name != "divide" or not isinstance(number, Literal) or not number.value:
            continue
        after = found.only(operation)
        if found.names(operation) == {"erf"}:
            inverse = replace(number, value=1 / number.value)
            replaced[operation.result.index] = replace(
                operation, name="multiply", operands=(operation.operands[0], inverse)
            )
        elif not LEAST_DIVISOR < number.value < GREATEST_DIVISOR or number.dtype != "float32":
            continue
        elif found.is_rounded(operation) or _is_bounded(made.get(operation.uses[0].tensor.index)):
            replaced[operation.result.index] = replace(operation, name=QUOTIENT)
        elif after is not None and after.name == "clip" and found.is_rounded(after):
            bounds = tuple(bound * number.value for bound in after.numbers)
            bounded = replace(after, operands=operation.operands[:1], result=operation.result, numbers=bounds)
            quotient = (Use(operation.result, operation.result.shape), number)
            replaced[operation.result.index] = bounded
            replaced[after.result.index] = replace(after, name=QUOTIENT, operands=quotient, numbers=())
    return [replaced.get(operation.result.index, operation) for operation in operations]


def _is_bounded(dividend: Operation | None) -> bool:
    """Whether a dividend is finite or NaN."""
    if dividend is None:
        return False
    return dividend.name in BOUNDED or (dividend.name == "clip" and all(map(math.isfinite, dividend.numbers)))


@dataclass(frozen=True)
class _Readers:
    """The operators that read each tensor, by its index; None for a result of the partition."""

    found: dict[int, list[Operation | None]]

    def only(self, operation: Operation) -> Operation | None:
        """Return the operator that alone reads a result, once; None if there is none."""
        readers = self.found.get(operation.result.index, [])
        return readers[0] if len(readers) == 1 else None

    def names(self, operation: Operation) -> set[str]:
        """Return the names of the operators that read a result."""
        return {reader.name if reader else "" for reader in self.found.get(operation.result.index, [])}

    def is_rounded(self, operation: Operation) -> bool:
        """Whether a result is only rounded, and that only converted to int32."""
        rounded = self.only(operation)
        cast = self.only(rounded) if rounded is not None and rounded.name == "round" else None
        return cast is not None and cast.name == "astype" and cast.result.dtype == "int32"

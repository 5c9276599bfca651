"""Replaces divisions by numbers where a product is as accurate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packager.backends.ccompiler.core.operations import Literal, Operation, Tensor


def multiply_by_reciprocals(operations: Sequence[Operation], results: Sequence[Tensor]) -> list[Operation]:
    """Replace divisions by a number that only ``erf`` reads, as in GELU, by products, which are as accurate there."""
    readers: dict[int, set[str]] = {tensor.index: {"result"} for tensor in results}
    for operation in operations:
        for use in operation.uses:
            readers.setdefault(use.tensor.index, set()).add(operation.name)

    def multiplied(operation: Operation) -> Operation:
        number = operation.operands[-1] if operation.operands else None
        read_by_erf = readers.get(operation.result.index) == {"erf"}
        if operation.name != "divide" or not read_by_erf or not isinstance(number, Literal) or not number.value:
            return operation
        return replace(
            operation, name="multiply", operands=(operation.operands[0], replace(number, value=1 / number.value))
        )

    return list(map(multiplied, operations))

"""Finds results of bytes that depend on one byte each, as of quantized sigmoid and SiLU, and makes them tables.

``DequantizeLinear``, an activation and ``QuantizeLinear`` of 8 bits have 256 results. Looking one up takes a fifth of
computing an exponential function, whatever is between: three quantizations of x * sigmoid(x) are one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.bytes.evaluate import FUNCTIONS, evaluate
from packager.backends.ccompiler.core.operations import Operation, Tensor, Use
from packager.backends.ccompiler.core.program import TABLE
from packager.backends.ccompiler.core.stages import Stage, is_full

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

BYTES = ("int8", "uint8")
# What finds a result takes as long as about so many operators of floats.
WORTH = 10
# As many of those a function takes, as of exp.
COSTS = dict.fromkeys(FUNCTIONS, WORTH)


def use_tables(stage: Stage) -> Stage:
    """Return a stage with tables in place of operators after its anchor, where these take less."""
    wanted = {tensor.index for tensor in stage.stored}
    found: list[Operation] = []
    for operation in reversed(stage.after):
        result = operation.result
        if result.index not in wanted:
            continue
        table = _table_of(result, stage.after) if result.dtype in BYTES else None
        found.insert(0, table or operation)
        wanted |= {use.tensor.index for use in found[0].uses}
    return replace(stage, after=tuple(found)) if any(operation.name == TABLE for operation in found) else stage


def _table_of(result: Tensor, operations: Sequence[Operation]) -> Operation | None:
    """Return the operator that takes the place of the most others, or None if none is worth it."""
    made = {operation.result.index: operation for operation in operations}
    best: tuple[float, Use, list[Operation]] | None = None
    for use in _bytes_before(result, made):
        cone = _cone(result, use, made)
        cost = sum(COSTS.get(operation.name, 1) for operation in cone or ())
        if cone is not None and cost >= WORTH and (best is None or cost > best[0]):
            best = cost, use, cone
    if best is None:
        return None
    _, source, cone = best
    inputs = np.arange(256, dtype=np.uint8).view(source.tensor.dtype)
    values: dict[int, Array] = {source.tensor.index: inputs}
    for operation in cone:
        found = evaluate(operation, [values[use.tensor.index] for use in operation.uses])
        if found is None:
            return None
        values[operation.result.index] = np.broadcast_to(found, inputs.shape)
    results = np.ascontiguousarray(values[result.index]).view(np.uint8)
    return Operation(TABLE, (source,), result, numbers=tuple(int(byte) for byte in results))


def _bytes_before(result: Tensor, made: dict[int, Operation]) -> list[Use]:
    """Return the operands of bytes that a result is computed from."""
    found: dict[int, Use] = {}
    seen: set[int] = set()
    waiting = [result.index]
    while waiting:
        index = waiting.pop()
        if index in seen or index not in made:
            continue
        seen.add(index)
        for use in made[index].uses:
            waiting.append(use.tensor.index)
            if use.tensor.dtype in BYTES:
                found.setdefault(use.tensor.index, use)
    return list(found.values())


def _cone(result: Tensor, source: Use, made: dict[int, Operation]) -> list[Operation] | None:
    """Return the operators from a source to a result in order, or None if these read anything else."""
    needed: set[int] = set()
    waiting = [result.index]
    while waiting:
        index = waiting.pop()
        if index == source.tensor.index or index in needed:
            continue
        operation = made.get(index)
        if operation is None or not all(is_full(use, operation.result.shape) for use in operation.uses):
            return None
        needed.add(index)
        waiting += [use.tensor.index for use in operation.uses]
    return [operation for index, operation in made.items() if index in needed]

"""Finds the casts that are fused into what reads them, so that what is between keeps its narrow element type."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tvm.runtime import DataType

from packager.graph.dataflow import operator_of

SCALING = frozenset(("astype", "multiply", "add", "subtract"))
"""Operators that cast or scale a value: the chain between its producer and an operator that reads it."""


def late_casts(values: Sequence[Any], predecessors: Sequence[Collection[int]]) -> set[int]:
    """Return the numbers of the widening casts of all operands but the last of each operator, among these values."""
    late = set()
    for sources in predecessors:
        chains = [_scaled(source, values, predecessors) for source in sources] if len(sources) > 1 else []
        latest = max((chain[-1] for chain in chains), default=0)
        late |= {node for chain in chains if chain[-1] < latest for node in chain if _widens(values[node])}
    return late


def _scaled(node: int, values: Sequence[Any], predecessors: Sequence[Collection[int]]) -> list[int]:
    """Return the chain of casts and scalings that ends at ``node``, last first, then the producer of the value."""
    chain = [node]
    while operator_of(values[chain[-1]]) in SCALING and len(predecessors[chain[-1]]) == 1:
        chain += predecessors[chain[-1]]
    return chain


def _widens(value: Any) -> bool:
    if operator_of(value) != "astype":
        return False
    before, after = (DataType(str(ty.dtype)).bits for ty in (value.args[0].ty, value.ty))
    return bool(after > before)

"""What searches ask of values in a graph: extents, whether one is a number, and who reads a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer

from packager.dataflow import Dataflow

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")


def shape_of(expr: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor, integers where they are known; None if its rank is not."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in ty.shape.values)


def same(a: Any, b: Any) -> bool:
    """Whether two extents, or two sequences of them, are equal for all values of the dims."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(Analyzer().can_prove_equal(a, b))


def scalar_of(expr: Any) -> float | None:
    """Return a number that stands in the graph; None for anything else."""
    value: Any = getattr(expr, "value", None)
    if hasattr(value, "numpy"):
        array = value.numpy()
        return float(array.item()) if array.size == 1 else None
    return float(value) if isinstance(value, int | float) else None


def in_order(flow: Dataflow, variables: Sequence[Any]) -> tuple[Any, ...]:
    """Return variables in the order of their bindings, each once."""
    wanted = {variable.__chandle__() for variable in variables}
    return tuple(variable for variable in flow.variables if variable.__chandle__() in wanted)


def only_last_is_read(flow: Dataflow, variables: Sequence[Any]) -> bool:
    """Whether of all these variables only the last given is read by others."""
    inner = {variable.__chandle__() for variable in variables}
    for variable in variables[:-1]:
        if flow.is_result(variable) or any(reader.__chandle__() not in inner for reader in flow.readers(variable)):
            return False
    return True

"""Conditions on its dims that a program asserts: proved for all sizes, or left for each run to check."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch

from packager.errors import ModelError
from packager.frontends.torch.ops.program import LARGEST_KNOWN, operator_of
from packager.frontends.torch.shapes import Symbols
from packager.graph.conditions import Constraint

_RELATIONS: Mapping[type, tuple[str, int]] = {  # the relation, and what is added to the left side
    sympy.Eq: ("==", 0),
    sympy.Le: ("<=", 0),
    sympy.Lt: ("<=", 1),
}


def open_conditions(
    program: Any, bounds: Mapping[str, tuple[int, int]], symbols: Symbols
) -> Iterator[tuple[Constraint, str]]:
    """Yield the assertions of a program that do not follow from ``bounds`` of its dims, each with its node.

    torch emits assertions for guards that it cannot prove at export. Raises ModelError for one that no run can check.
    """
    for node in program.graph.nodes:
        condition = node.args[0].meta.get("val") if operator_of(node) == "_assert_scalar.default" else None
        if isinstance(condition, torch.SymBool) and not _always(condition.node.expr, bounds):
            for constraint in _constraints(condition.node.expr, symbols):
                yield constraint, str(node.name)


def _constraints(condition: Any, symbols: Symbols) -> list[Constraint]:
    if isinstance(condition, sympy.And):
        return [constraint for part in condition.args for constraint in _constraints(part, symbols)]
    if isinstance(condition, sympy.Ge | sympy.Gt):
        condition = condition.reversed
    if type(condition) not in _RELATIONS:
        raise ModelError(
            f"the program asserts {condition}, which cannot be proved for all sizes of its dims",
            hint="narrow the dims with --dim, or fix them",
        )
    relation, more = _RELATIONS[type(condition)]
    # What is subtracted goes to the other side: expressions over dims have no negative numbers.
    terms = sympy.Add.make_args(sympy.expand(condition.lhs + more - condition.rhs))
    left = sympy.Add(*(term for term in terms if not term.could_extract_minus_sign()))
    right = sympy.Add(*(-term for term in terms if term.could_extract_minus_sign()))
    return [(symbols.expression(left), relation, symbols.expression(right))]


def _always(condition: Any, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Tell whether a condition holds for all sizes, by trying each."""
    symbols = sorted(condition.free_symbols, key=str)
    if not symbols:
        return bool(condition)
    if any(str(symbol) not in bounds for symbol in symbols):
        return False
    ranges = [bounds[str(symbol)] for symbol in symbols]
    if math.prod(high - low + 1 for low, high in ranges) > LARGEST_KNOWN:
        return False
    axes = [np.arange(low, high + 1) for low, high in ranges]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    functions = {"FloorDiv": np.floor_divide, "CleanDiv": np.floor_divide, "PythonMod": np.mod, "Mod": np.mod}
    return bool(np.all(sympy.lambdify(symbols, condition, [functions, "numpy"])(*grid)))

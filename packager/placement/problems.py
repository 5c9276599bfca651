"""Translate the problem of a match from variables and dims of ``main`` to those of the partition's function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import is_prim_expr
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from packager.graph.identity import IdentityMap


def renamed(problem: Any, renaming: Sequence[tuple[relax.Var, relax.Var]]) -> Any:
    """Substitute variables in a problem: the second of each pair for the first; likewise the extents of their shapes.

    Raises KeyError for a variable without a pair, and for an extent that is neither an extent of a first variable nor
    an expression over such dims.
    """
    variables = IdentityMap(renaming)
    extents: IdentityMap[Any] = IdentityMap()
    for before, after in renaming:
        for mine, other in zip(_extents(before.ty), _extents(after.ty), strict=False):
            extents.setdefault(mine, other)

    def variable(old: relax.Var) -> relax.Var:
        if old not in variables:
            raise KeyError(str(old.name))
        return variables[old]

    def extent(old: Any) -> Any:
        if isinstance(old, tirx.IntImm):
            return old
        if old in extents:
            return extents[old]
        analyzer = Analyzer()
        for mine, other in extents.items():
            if analyzer.can_prove_equal(mine, old):
                return other
        dims: list[tirx.Var] = []
        structural_walk(old, [(tirx.Var, dims.append)])
        if unknown := [dim for dim in dims if dim not in extents]:
            raise KeyError(str(unknown[0].name))
        return structural_map(old, (tirx.Var, extents.__getitem__))

    return _mapped(problem, variable, extent)


def facts_of(problem: Any, numbers: Mapping[Any, int]) -> Any:
    """Return the part of a problem that equal partitions share, as a value that compares with ``==``.

    Variables become their ``numbers`` in the partition; symbolic extents are not compared.
    """
    if is_prim_expr(problem):  # before variables: TVM has one class for both
        return int(problem) if isinstance(problem, tirx.IntImm) else "an expression"
    if isinstance(problem, relax.Var):
        return relax.Var, numbers.get(problem)
    if isinstance(problem, tuple):
        return tuple(facts_of(part, numbers) for part in problem)
    if _is_record(problem):
        parts = (getattr(problem, field.name) for field in dataclasses.fields(problem))
        return type(problem), *(facts_of(part, numbers) for part in parts)
    return problem


def _mapped(value: Any, variable: Callable[[Any], Any], extent: Callable[[Any], Any]) -> Any:
    if is_prim_expr(value):
        return extent(value)
    if isinstance(value, relax.Var):
        return variable(value)
    if isinstance(value, tuple):
        return tuple(_mapped(part, variable, extent) for part in value)
    if _is_record(value):
        own = (field.name for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{name: _mapped(getattr(value, name), variable, extent) for name in own})
    return value


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _extents(ty: Any) -> list[Any]:
    """Return the extents of a tensor, or of all tensors of a tuple."""
    if isinstance(ty, relax.TupleType):
        return [extent for field in ty.fields for extent in _extents(field)]
    shape = getattr(ty, "shape", None)
    return list(shape.values) if isinstance(shape, relax.ShapeExpr) else []

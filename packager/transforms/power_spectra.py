"""Finds the products that logarithms of power spectra read: mel filters, as front ends of speech models have them.

Powers of an element of a thousand are infinite in float16, and quiet ones, whose logarithms count as much, are zeros.
"""

from __future__ import annotations

from typing import Any

from packager.graph.dataflow import Dataflow, operator_of, scalar_of
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import PRODUCTS

VIEWS = ("reshape", "permute_dims", "squeeze", "expand_dims", "strided_slice", "astype")
BOUNDS = ("maximum", "minimum", "clip", "add", "multiply", "divide")  # by numbers
DEEPEST = 8


def logs_of_powers(flow: Dataflow) -> IdentitySet:
    """Return products of powers that a logarithm reads, behind views and bounds, and how these powers are computed."""
    found = IdentitySet()
    for variable in flow.variables:
        call = flow.value(variable)
        if f"relax.{operator_of(call)}" in PRODUCTS and _is_read_by_log(flow, variable):
            powers = [power for operand in call.args for power in _powers(flow, operand)]
            found |= IdentitySet([*powers, variable] if powers else [])
    return found


def _powers(flow: Dataflow, variable: Any, left: int = DEEPEST) -> list[Any]:
    """Return the variables that compute a square, a sum of squares or a root of one; none if it is something else."""
    call = flow.value(variable)
    name = operator_of(call)
    if left == 0 or not name:
        return []
    if name in ("square", "abs") or (name == "multiply" and call.args[0].same_as(call.args[1])):
        return [variable]
    if name == "power":
        return [variable] if scalar_of(call.args[1]) == 2.0 else []
    if name not in (*VIEWS, "sqrt", "sum", "add"):
        return []
    terms = [_powers(flow, term, left - 1) for term in (call.args if name == "add" else call.args[:1])]
    return [variable, *(each for term in terms for each in term)] if all(terms) else []


def _is_read_by_log(flow: Dataflow, variable: Any, left: int = DEEPEST) -> bool:
    for reader in flow.readers(variable) if left else ():
        call = flow.value(reader)
        name = operator_of(call)
        bounds = name in BOUNDS and (name == "clip" or any(scalar_of(operand) is not None for operand in call.args))
        if name == "log" or ((name in VIEWS or bounds) and _is_read_by_log(flow, reader, left - 1)):
            return True
    return False

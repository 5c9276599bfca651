"""Finds running sums that exponentials read: logarithms of decays, as state space models and linear attention have.

They reach hundreds, where float16 has a step of a quarter and more, and an error of the sum is one of its exponential.
Autocast of torch keeps them in float32, too. So are linear recurrences, where errors of decays near 1 add up, and what
logarithms read: a softplus, log(1 + exp(x)), is infinite from 11 on where float16 has the exponential, and 0 below -8.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of
from packager.graph.identity import IdentitySet
from packager.graph.recurrences.forward_substitution import OPERATOR as FORWARD_SUBSTITUTION
from packager.graph.recurrences.linear_scan import OPERATOR as LINEAR_SCAN
from packager.transforms.power_spectra import BOUNDS, VIEWS

ELEMENTWISE = frozenset(("exp", "log", "sigmoid", "sqrt", "square", "tanh", "power"))
PASSED_BY = frozenset(
    (*VIEWS, *BOUNDS, "subtract", "negative", "where", "broadcast_to", "concat", "split", "tile", "repeat", "nn.pad")
)


def exponents_of_running_sums(flow: Dataflow) -> IdentitySet:
    """Return the cumulative sums that exponentials read, and what lies between: differences, masks and views."""
    derived = IdentitySet()
    for variable in flow.variables:
        value = flow.value(variable)
        name = operator_of(value)
        read = [value.tuple_value] if isinstance(value, relax.TupleGetItem) else getattr(value, "args", ())
        passes = name in PASSED_BY or isinstance(value, relax.TupleGetItem)
        if name == "cumsum" or (passes and any(each in derived for each in _variables(read))):
            derived.add(variable)
    found = IdentitySet()
    for variable in reversed(flow.variables):
        readers = flow.readers(variable)
        if variable in derived and any(operator_of(flow.value(r)) == "exp" or r in found for r in readers):
            found.add(variable)
    return found


def sensitive_operands(flow: Dataflow) -> IdentitySet:
    """Return recurrences and substitutions, and what is computed element by element for these or logarithms alone."""
    found = IdentitySet()

    def needs_all(reader: Any) -> bool:
        return reader in found or operator_of(flow.value(reader)) == "log"

    for variable in reversed(flow.variables):
        name, readers = operator_of(flow.value(variable)), flow.readers(variable)
        inner = bool(readers) and not flow.is_result(variable) and all(map(needs_all, readers))
        if name in (LINEAR_SCAN, FORWARD_SUBSTITUTION) or (inner and (name in PASSED_BY or name in ELEMENTWISE)):
            found.add(variable)
    return found


def _variables(operands: Any) -> list[Any]:
    """Return operands, and the fields of those that are tuples."""
    return [each for o in operands for each in (o.fields if isinstance(o, relax.Tuple) else [o])]

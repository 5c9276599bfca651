"""Has scatters compute what they scatter, and short sums the windows that they are of.

Each update is read once, by the place that it goes to, or by the thread that puts it there, which reads an index as
well; and each element of a window once, by the sum: windows that lookups make overlap, so that they would be several
times what they are of.
"""

from __future__ import annotations

from typing import Any

import tvm

from packager.graph.dataflow import called_function
from packager.graph.identity import IdentitySet
from packager.ir.pattern_kinds import BROADCAST, INJECTIVE, SUMS
from packager.lower.cuda.fusion.patterns import Patterns, elements_of

# The most elements of a window.
SHORT = 32
# PrimFuncs of scatters that replace elements, of which one with a sum has another name.
REPLACING = ("scatter_elements", "scatter_nd")


@tvm.transform.module_pass(opt_level=0, name="FuseUpdates")  # type: ignore[untyped-decorator]
def fuse_updates(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Let FuseOps fuse what makes such updates and windows of ``main``: gathers, and what follows them."""
    patterns = Patterns(module)
    for variable in patterns.flow.variables:
        if patterns[variable] == SUMS:
            name, operand = _call(patterns, variable)
            if name.startswith("scatter"):
                replaces = name.startswith(REPLACING)
                for each in _read_alone(patterns, variable) if replaces else _read_once(patterns, operand):
                    _mark(patterns, each)
            elif name.startswith("sum") and elements_of(operand) <= SHORT * elements_of(variable):
                windows = [each for each in _read_once(patterns, operand) if elements_of(each) == elements_of(operand)]
                for each in windows if _are_lookups(patterns, windows) else ():
                    _mark(patterns, each)
    return patterns.applied()


def _are_lookups(patterns: Patterns, windows: list[Any]) -> bool:
    """Whether windows come from lookups in what no elementwise function makes: each window would compute it again."""
    known = IdentitySet(windows)
    calls = [patterns.flow.value(each) for each in windows]
    tables = [call.args[1].fields[0] for call in calls if str(called_function(call)).startswith("take")]
    made = [patterns[table] for table in tables if table not in known]
    return bool(tables) and all(pattern is None or pattern > BROADCAST for pattern in made)


def _call(patterns: Patterns, variable: Any) -> tuple[str, Any]:
    """Return the name of the PrimFunc that makes a variable, and its last operand."""
    value = patterns.flow.value(variable)
    return str(called_function(value)), value.args[1].fields[-1]


def _mark(patterns: Patterns, variable: Any) -> None:
    if patterns[variable] == INJECTIVE:
        patterns[variable] = BROADCAST


def _read_alone(patterns: Patterns, variable: Any) -> IdentitySet:
    """Return what is computed, by functions that TVM fuses with others, for a variable alone."""
    found = IdentitySet([variable])
    waiting = [variable]
    while waiting:
        for operand in patterns.flow.value(waiting.pop()).args[1].fields:
            pattern = patterns[operand]
            fuses = pattern is not None and pattern <= INJECTIVE and not patterns.flow.is_result(operand)
            if fuses and operand not in found and all(each in found for each in patterns.flow.readers(operand)):
                found.add(operand)
                waiting.append(operand)
    return IdentitySet(each for each in found if not each.same_as(variable))


def _read_once(patterns: Patterns, variable: Any) -> list[Any]:
    """Return what a variable is computed of and is read once, up to what TVM would not fuse with other functions."""
    pattern = patterns[variable]
    if pattern is None or pattern > INJECTIVE or not patterns.flow.is_read_once(variable):
        return []
    operands = patterns.flow.value(variable).args[1].fields
    return [variable, *(each for operand in operands for each in _read_once(patterns, operand))]

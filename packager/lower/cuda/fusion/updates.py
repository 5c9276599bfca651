"""Has scatters of sorted slices compute what they scatter: each update is read once, by the place that it goes to."""

from __future__ import annotations

from typing import Any

import tvm

from packager.graph.dataflow import called_function
from packager.ir.pattern_kinds import BROADCAST, INJECTIVE, SUMS
from packager.lower.cuda.fusion.patterns import Patterns


@tvm.transform.module_pass(opt_level=0, name="FuseUpdates")  # type: ignore[untyped-decorator]
def fuse_updates(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Let FuseOps fuse what makes the updates of sorted scatters of ``main``: gathers, and what follows them."""
    patterns = Patterns(module)
    for variable in patterns.flow.variables:
        if patterns[variable] == SUMS and str(called_function(patterns.flow.value(variable))).startswith("scatter"):
            _follow(patterns, patterns.flow.value(variable).args[1].fields[-1])
    return patterns.applied()


def _follow(patterns: Patterns, variable: Any) -> None:
    """Mark what is read once, up to what TVM would not fuse with elementwise functions."""
    pattern = patterns[variable]
    if pattern is None or pattern > INJECTIVE or not patterns.flow.is_read_once(variable):
        return
    if pattern == INJECTIVE:
        patterns[variable] = BROADCAST
    for operand in patterns.flow.value(variable).args[1].fields:
        _follow(patterns, operand)

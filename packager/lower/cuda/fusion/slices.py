"""Has functions read the slices that they broadcast where these lie, as shifts, scales and gates of adaptive norms.

FuseOps takes no function that moves elements into the kernel of a reduction, so that each slice would be a copy.
"""

from __future__ import annotations

import math
from typing import Any

import tvm

from packager.graph.dataflow import called_function
from packager.ir.pattern_kinds import BROADCAST, INJECTIVE
from packager.lower.cuda.fusion.patterns import Patterns, elements_of

# A slice is broadcast to at least so many times its elements: all threads load it from the cache.
REPEATS = 2


@tvm.transform.module_pass(opt_level=0, name="FuseSlices")  # type: ignore[untyped-decorator]
def fuse_slices(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Let FuseOps fuse slices of ``main`` with what broadcasts them."""
    patterns = Patterns(module)
    for variable in patterns.flow.variables:
        if patterns[variable] == INJECTIVE and _is_slice(patterns, variable) and _is_broadcast(patterns, variable):
            patterns[variable] = BROADCAST
    return patterns.applied()


def _is_slice(patterns: Patterns, variable: Any) -> bool:
    name = called_function(patterns.flow.value(variable))
    return name is not None and name.startswith("strided_slice")


def _is_broadcast(patterns: Patterns, variable: Any) -> bool:
    """Whether a tensor is read once, by elementwise functions, in the end by one of many more elements."""
    least = REPEATS * elements_of(variable)
    while patterns.flow.is_read_once(variable):
        (variable,) = patterns.flow.readers(variable)
        kind = patterns[variable]
        if kind is None or kind > BROADCAST:
            return False
        if least <= elements_of(variable) < math.inf:
            return True
    return False

"""Replaces compound extents, ``height // 32 * 4 + 4``, by variables of their own.

TVM's schedules have to prove how fused loops split again, which they cannot for sums and quotients. A parameter's
extent that is a variable has the value that a call's argument has there.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var
from tvm_ffi import structural_equal, structural_map

from packager.graph.rewrite import nodes_of


def name_extents(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with a variable for each distinct compound extent of its parameters."""
    found: list[Any] = []
    for parameter in primfunc.params:
        for extent in parameter.shape if is_buffer_var(parameter) else ():
            if _is_compound(extent) and not any(structural_equal(extent, other) for other in found):
                found.append(extent)
    # An extent may be a part of another: the larger ones first.
    for number, extent in enumerate(sorted(found, key=lambda e: -len(nodes_of(e, tvm.ir.Expr)))):
        primfunc = _replaced(primfunc, extent, tirx.Var(f"extent_{number}", "int64"))
    return primfunc


def _is_compound(extent: Any) -> bool:
    return not isinstance(extent, tirx.IntImm | tirx.Var) and bool(nodes_of(extent, tirx.Var))


def _replaced(primfunc: tirx.PrimFunc, extent: Any, variable: tirx.Var) -> tirx.PrimFunc:
    return structural_map(primfunc, (type(extent), lambda expr: variable if structural_equal(expr, extent) else expr))

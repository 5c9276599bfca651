"""Loop schedules for GPUs: which rule serves which PrimFunc.

Every rule binds all loops of the function to threads, or leaves the function alone. The rules look at the shape of the
blocks and not at names. What none of them takes runs by dlight's fallback: one element a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import ScheduleError, dlight

from packager.lower.cuda_blocks import blocks, inline, is_spatial, schedule_of
from packager.lower.cuda_columns import schedule_columns
from packager.lower.cuda_matmul import schedule_matmul
from packager.lower.cuda_rows import schedule_rows
from packager.lower.cuda_short_rows import schedule_short_rows
from packager.lower.cuda_spatial import schedule_spatial
from packager.lower.cuda_widen import widen
from packager.lower.cuda_windows import schedule_windows

_Rule = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def schedule_cuda(primfunc: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a scheduled copy of an S-TIR PrimFunc, every loop nest bound to threads; its parameters stay the same."""
    primfunc = widen(primfunc)
    with target:
        for rule in _RULES:
            try:
                scheduled = rule(primfunc)
            except Exception:  # a rule that does not apply: schedules raise whatever their C++ side runs into
                continue
            if _is_bound(scheduled):
                return scheduled
        return _fallback(primfunc)


def _spatial(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = schedule_of(primfunc)
    if not all(is_spatial(sch, block) for block in blocks(sch)):
        raise ScheduleError("the function reduces")
    inline(sch, lambda _sch, _block: True)
    for block in blocks(sch):
        schedule_spatial(sch, block)
    return sch.mod["main"]


def _dlight(*rules: Any) -> _Rule:
    def apply(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": primfunc}))["main"]

    return apply


_fallback = _dlight(dlight.gpu.Fallback())
_RULES: tuple[_Rule, ...] = (
    _spatial,
    schedule_windows,
    schedule_matmul,
    schedule_short_rows,
    schedule_rows,
    schedule_columns,
    _dlight(dlight.gpu.Reduction(), dlight.gpu.GeneralReduction()),
)


def _is_bound(primfunc: tirx.PrimFunc) -> bool:
    """Tell whether each loop nest at the root is bound to threads."""
    sch = schedule_of(primfunc)
    return all(any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block)) for block in blocks(sch))

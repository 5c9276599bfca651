"""Loop schedules for GPUs: which rule serves which PrimFunc.

Every rule binds all loops of the function to threads, or leaves the function alone. The rules look at the shape of the
blocks and not at names. What none of them takes runs by dlight's fallback: one element a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError, dlight

from packager.lower.cuda.blocks import blocks, inline, is_reduction, is_spatial, kinds, schedule_of
from packager.lower.cuda.column_reduction import schedule_columns
from packager.lower.cuda.depthwise_conv import schedule_windows
from packager.lower.cuda.elementwise import schedule_spatial
from packager.lower.cuda.matmul import schedule_matmul
from packager.lower.cuda.row_reduction import schedule_rows
from packager.lower.cuda.scatter_scan import schedule_opaque
from packager.lower.cuda.short_row_reduction import schedule_short_rows
from packager.lower.cuda.widen_float16 import widen

_Rule = Callable[[tirx.PrimFunc], tirx.PrimFunc]
# What a rule that does not apply raises, and what TVM's primitives raise in one of its steps: their conditions, and the
# checks of the C++ behind them. Anything else is a mistake in a rule.
_NOT_FOR_THIS = (ScheduleError, InternalError)


def schedule_cuda(primfunc: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a scheduled copy of an S-TIR PrimFunc, every loop nest bound to threads; its parameters stay the same."""
    primfunc = widen(primfunc)
    with target:
        for rule in _RULES:
            try:
                scheduled = rule(primfunc)
            except _NOT_FOR_THIS:
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


def _rows(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    _check_reductions(schedule_of(primfunc))
    return schedule_rows(primfunc)


def _columns(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = schedule_of(primfunc)
    _check_reductions(sch)
    for block in blocks(sch):
        if is_reduction(sch, block) and len(sch.get_loops(block)) == kinds(sch, block).count(tirx.IterVar.CommReduce):
            raise ScheduleError("the reduction keeps no axis")
    return schedule_columns(primfunc)


def _check_reductions(sch: s_tir.Schedule) -> None:
    """Raise ScheduleError for reductions of several values at once, as argmax is one: the rules look at one store."""
    if any(is_reduction(sch, b) and not isinstance(sch.get(b).body, tirx.BufferStore) for b in blocks(sch)):
        raise ScheduleError("a reduction of more than one value")


def _reduce_by_dlight(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    try:
        return _dlight(primfunc, dlight.gpu.Reduction(), dlight.gpu.GeneralReduction())
    except Exception as error:  # TVM's own rules also fail by assertions, and by Python's errors
        raise ScheduleError("dlight has no schedule for this reduction") from error


def _fallback(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    return _dlight(primfunc, dlight.gpu.Fallback())


def _dlight(primfunc: tirx.PrimFunc, *rules: Any) -> tirx.PrimFunc:
    return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": primfunc}))["main"]


_RULES: tuple[_Rule, ...] = (
    schedule_opaque,
    _spatial,
    schedule_windows,
    schedule_matmul,
    schedule_short_rows,
    _rows,
    _columns,
    _reduce_by_dlight,
)


def _is_bound(primfunc: tirx.PrimFunc) -> bool:
    """Tell whether each loop nest at the root is bound to threads."""
    sch = schedule_of(primfunc)
    return all(any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block)) for block in blocks(sch))

"""CUDA loop schedules: try the rules in order.

A rule binds all loops of the function to threads or raises ScheduleError. Rules match the shape of the blocks, not
names. If none applies, dlight's fallback computes one element per thread.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError, dlight

from packager.lower.blocks import (
    blocks,
    check_reductions,
    extents,
    inline,
    is_conditional,
    is_movement,
    is_reduction,
    is_spatial,
    kinds,
    schedule_of,
)
from packager.lower.conditional_loads import part_conditional_loads, simplify_conditional_loads
from packager.lower.cuda.column_reduction import schedule_column_reduction
from packager.lower.cuda.compound_extents import name_extents
from packager.lower.cuda.depthwise_conv import schedule_depthwise_conv
from packager.lower.cuda.element_loops import schedule_element_loops
from packager.lower.cuda.elementwise import check_aligned, load_vectors, schedule_elementwise, vector_width, vectorize
from packager.lower.cuda.group_norms.schedule import schedule_group_rows
from packager.lower.cuda.log_sums.schedule import schedule_log_sums
from packager.lower.cuda.matmul import schedule_matmul
from packager.lower.cuda.merge_axes import merge_axes
from packager.lower.cuda.rows.reduction import schedule_row_reduction
from packager.lower.cuda.rows.short import schedule_short_row_reduction
from packager.lower.cuda.scatter_scan import schedule_scatter_scan
from packager.lower.cuda.skinny_matmul import schedule_skinny_matmul
from packager.lower.cuda.widen_float16 import widen

# Runs of a block that a schedule may have for each instance: idle threads of a short reduction count, too.
MOST_REPEATS = 64
_Rule = Callable[[tirx.PrimFunc], tirx.PrimFunc]
# Raised by a rule that does not apply, or by TVM's schedule primitives (and the C++ checks behind them) in its steps.
# Any other exception is a bug in a rule.
_NOT_FOR_THIS = (ScheduleError, InternalError)


def schedule_cuda(primfunc: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a scheduled copy of an S-TIR PrimFunc, every loop nest bound to threads.

    Its parameters stay the same, but that an extent may become a variable, and that elementwise functions and
    normalizations may see them in other shapes of as many elements.
    """
    with target:
        return simplify_conditional_loads(_scheduled(name_extents(widen(primfunc))))


def rule_of(primfunc: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Return the name of the rule that schedules a function; empty if that is dlight's fallback."""
    with target:
        return next((rule.__name__ for rule, _ in _by_rules(name_extents(widen(primfunc)))), "")


def _scheduled(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    found = next((scheduled for _, scheduled in _by_rules(primfunc)), None)
    return _dlight(primfunc, dlight.gpu.Fallback()) if found is None else found


def _by_rules(primfunc: tirx.PrimFunc) -> Iterator[tuple[_Rule, tirx.PrimFunc]]:
    """Yield each rule that applies, and what it makes of a function."""
    for rule in _RULES:
        try:
            scheduled = rule(primfunc)
        except _NOT_FOR_THIS:
            continue
        if _is_bound(scheduled):
            yield rule, scheduled


def _spatial(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = schedule_of(primfunc)
    if not all(is_spatial(sch, block) for block in blocks(sch)):
        raise ScheduleError("the function reduces")
    inline(sch, lambda _sch, _block: True)
    with contextlib.suppress(*_NOT_FOR_THIS):
        sch = schedule_of(merge_axes(sch))
    with contextlib.suppress(*_NOT_FOR_THIS):
        return _conditional(sch)
    for block in blocks(sch):
        schedule_elementwise(sch, block)
    return sch.mod["main"]


def _conditional(sch: s_tir.Schedule) -> tirx.PrimFunc:
    """Return an elementwise function of one block whose threads load vectors of what conditions choose, then compute.

    Raises ScheduleError where the rows do not fill vectors, or conditions are not the same for all elements of one.
    """
    (whole, *_) = blocks(sch)
    width = vector_width(sch, whole, extents(sch, sch.get_loops(whole))[-1]) if sch.get_loops(whole) else 1
    if width == 1:
        raise ScheduleError("rows do not fill vectors")
    sch = schedule_of(part_conditional_loads(sch, width))
    *parts, block = blocks(sch)
    if not parts:
        raise ScheduleError("no vectors are loaded on a condition")
    check_aligned(sch, parts, width)
    for part in parts:
        sch.set_scope(part, 0, "local")
    load_vectors(sch, vectorize(sch, block), reversed(parts))
    return sch.mod["main"]


def _joined(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Load vectors of what is joined first: inlined, conditions would choose among loads of single elements."""

    def joins(sch: s_tir.Schedule, block: Any) -> bool:
        return is_conditional(sch, block) and is_movement(sch, block)

    sch = schedule_of(primfunc)
    inline(sch, lambda sch, block: not joins(sch, block))
    *before, last = blocks(sch)
    if not before or not is_spatial(sch, last) or not all(joins(sch, block) for block in before):
        raise ScheduleError("nothing is joined, or not by an elementwise function")
    vectorize(sch, last, before)
    return sch.mod["main"]


def _columns(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = schedule_of(primfunc)
    check_reductions(sch)
    for block in blocks(sch):
        if is_reduction(sch, block) and len(sch.get_loops(block)) == kinds(sch, block).count(tirx.IterVar.CommReduce):
            raise ScheduleError("the reduction keeps no axis")
    scheduled = schedule_column_reduction(primfunc)
    _check_repeats(schedule_of(scheduled))
    return scheduled


def _reduce_by_dlight(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    try:
        scheduled = _dlight(primfunc, dlight.gpu.Reduction(), dlight.gpu.GeneralReduction())
    except Exception as error:  # TVM's rules also fail by assertions and Python errors
        raise ScheduleError("dlight has no schedule for this reduction") from error
    _check_repeats(schedule_of(scheduled))
    return scheduled


def _check_repeats(sch: s_tir.Schedule) -> None:
    """Raise ScheduleError if a block runs many more times than it has instances.

    Where the last block does not read a reduction, dlight's thread blocks each compute all of it; threads of columns
    would reduce a whole row for each of its elements.
    """
    for block in blocks(sch):
        loops = extents(sch, sch.get_loops(block))
        domains = [var.dom.extent for var in sch.get(block).iter_vars]
        static = all(isinstance(extent, int | tirx.IntImm) for extent in (*loops, *domains))
        if static and math.prod(loops) > MOST_REPEATS * math.prod(map(int, domains)):
            raise ScheduleError("a block runs many times as often as it needs to")


def _dlight(primfunc: tirx.PrimFunc, *rules: Any) -> tirx.PrimFunc:
    return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": primfunc}))["main"]


_RULES: tuple[_Rule, ...] = (
    schedule_scatter_scan,
    schedule_element_loops,
    _joined,
    _spatial,
    schedule_depthwise_conv,
    schedule_skinny_matmul,
    schedule_matmul,
    schedule_short_row_reduction,
    schedule_row_reduction,
    schedule_group_rows,
    schedule_log_sums,
    _columns,
    _reduce_by_dlight,
)


def _is_bound(primfunc: tirx.PrimFunc) -> bool:
    """Tell whether every loop nest under the root is bound to threads."""
    sch = schedule_of(primfunc)
    return all(any(sch.get(loop).thread_binding is not None for loop in sch.get_loops(block)) for block in blocks(sch))

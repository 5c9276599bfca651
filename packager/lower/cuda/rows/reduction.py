"""Schedules row reductions, such as softmax and normalizations: each row is read once and held in registers.

A row is distributed over the threads of a warp, or of a block if it is long: thread t holds vectors t, t + threads, ...
of each operand, and all reductions and intermediate values use registers. A row too long for registers is held in
shared memory; one of symbolic length is read again, from the cache.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import s_tir, sym, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import ScheduleError

from packager.graph.dataflow import is_one
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import (
    blocks,
    check_reductions,
    extents,
    inline,
    is_parameter,
    is_reduction,
    is_spatial,
    kinds,
    schedule_of,
    variables,
)
from packager.lower.cuda.rows.layout import Rows, lay_out_rows
from packager.lower.cuda.rows.merge import merge_leading_axes, merge_rows
from packager.lower.cuda.rows.operands import hold_operands, looks_up_row, reads_row
from packager.lower.cuda.rows.parts import loads_part, loads_vector
from packager.lower.cuda.rows.results import store_apart

# Elements that a thread loads ahead from a row in global memory.
UNROLLED = 4
# Vectors that a thread loads at once when staging to shared memory.
STAGED = 8
# Makes TVM split a loop into full steps without guards, and the rest.
PARTITION = "pragma_loop_partition_hint"


def schedule_row_reduction(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind reductions along the last axes, and the blocks computed from them, to threads.

    Raises ScheduleError if the rule does not apply.
    """
    sch = schedule_of(primfunc)
    check_reductions(sch)
    store_apart(sch)
    inline(sch, _is_cheap)
    for block in blocks(sch):
        _drop_unit_axes(sch, block)
    with contextlib.suppress(ScheduleError):
        return _schedule(merge_leading_axes(merge_rows(sch.copy())))
    with contextlib.suppress(ScheduleError):
        return _schedule(merge_leading_axes(sch.copy()))
    return _schedule(sch)


def _schedule(sch: s_tir.Schedule) -> tirx.PrimFunc:
    first = next((block for block in blocks(sch) if is_reduction(sch, block)), None)
    if first is None:
        raise ScheduleError("no reduction")
    rows = lay_out_rows(sch, first)
    if not rows.steps:
        inline(sch, lambda _sch, _block: True)
    parts: list[Any] = []
    found: list[Any] = []
    for block in blocks(sch):
        (parts if rows.steps and loads_vector(sch, block, first) else found).append(block)
    for block in found:
        _check(sch, block, first, rows)
    if not is_spatial(sch, found[-1]):
        found.append(sch.cache_write(found[-1], 0, "global"))
    full = [block for block in found if _is_full(sch, block, rows)]
    ends = _ends(sch, found, rows)
    if rows.steps:
        held = [*parts, *hold_operands(sch, full)]
        stores = [sch.cache_write(block, 0, "local") for block in ends if any(block is other for other in full)]
        found, full = [*held, *found, *stores], [*held, *full, *stores]
        names = [sch.get(block).name_hint for block in found]
        indices = [names.index(sch.get(block).name_hint) for block in full]
        for block in full:
            _split_on_threads(sch, block, rows)
        # The schedule does not simplify (thread * width + element) // span to 0, which shows what each thread needs.
        sch = schedule_of(s_tir.transform.StmtSimplify()(sch.mod)["main"])
        found = [sch.get_sblock(name, func_name="main") for name in names]
        full = [found[index] for index in indices]
    stage = _stage(sch, first, found) if rows.staged and len(full) > 1 else None
    results = found[-len(ends) :]
    if len(results) > 1:
        sch.merge(*(sch.get_loops(block)[-rows.inner - 1] for block in results))
    row = _bind_last(sch, found[-1], rows, full=found[-1] is full[-1])
    for block in results[:-1]:
        _spread(sch, list(sch.get_loops(block))[-rows.inner :], rows, vector=True)
    for block in reversed(found[: -len(ends)]):
        _compute_at_row(sch, block, row, rows, full=any(block is other for other in full))
    if stage is not None:
        _fill(sch, stage, row, rows)
    if rows.steps > 1 and not rows.exact:
        for block in full:
            _keep_own(sch, block, rows)
    try:
        s_tir.transform.LowerCrossThreadReduction()(s_tir.transform.CanonicalizeLoop()(sch.mod))
    except ValueError as error:
        raise ScheduleError("TVM cannot lower the reduction across threads") from error
    return sch.mod["main"]


def _drop_unit_axes(sch: s_tir.Schedule, block: Any) -> None:
    """Iterate over no axes of one element, such as those that a reduction with ``keepdims`` leaves."""
    iters = list(sch.get(block).iter_vars)
    long = [index for index, var in enumerate(iters) if not is_one(var.dom.extent)]
    if len(sch.get_loops(block)) == len(iters) and 0 < len(long) < len(iters):
        index_map = tirx.IndexMap.from_func(lambda *index: [index[i] for i in long], ndim=len(iters))
        sch.transform_block_layout(block, index_map)


def _is_cheap(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether to inline: all but values computed once per row and read again, such as softmax's exponentials.

    What loads part of a longer row, or a row that data choose, holds it, as a copy of an operand in registers does.
    """
    if loads_part(sch, block) or looks_up_row(sch, block):
        return False
    consumers = list(sch.get_consumers(block))
    reduces = any(is_reduction(sch, consumer) for consumer in consumers)
    return not (reduces and len(consumers) > 1 and nodes_of(sch.get(block).body, Call))


def _check(sch: s_tir.Schedule, block: Any, first: Any, rows: Rows) -> None:
    """Raise ScheduleError unless a block iterates over the rows of the first reduction, or over their elements."""
    analyzer = sym.Analyzer()
    sizes, wanted = extents(sch, sch.get_loops(block)), extents(sch, sch.get_loops(first))

    def same(left: list[Any], right: list[Any]) -> bool:
        return len(left) == len(right) and all(analyzer.can_prove_equal(a, b) for a, b in zip(left, right, strict=True))

    def only_rows() -> bool:
        return same([e for e in sizes if e != 1], [e for e in wanted[: rows.lead] if e != 1])

    full = same(sizes, wanted)
    if is_reduction(sch, block):
        if not full or kinds(sch, block).count(tirx.IterVar.CommReduce) != rows.trail:
            raise ScheduleError("reductions differ in shape")
    elif not is_spatial(sch, block) or not (full or only_rows()):
        raise ScheduleError("a block iterates over another shape than the reduction")
    if sizes and len(sch.get(block).iter_vars) != len(sizes):  # a scalar has a variable, and no loop
        raise ScheduleError("loops and block variables do not correspond")


def _ends(sch: s_tir.Schedule, found: list[Any], rows: Rows) -> list[Any]:
    """Return the blocks that write results. Raises ScheduleError for several, unless all are rows in registers."""
    ends = [block for block in found if not sch.get_consumers(block)]
    held = (rows.steps and is_spatial(sch, block) and _is_full(sch, block, rows) for block in ends)
    if len(ends) > 1 and not all(held):
        raise ScheduleError("several results, which are not rows that registers hold")
    return ends


def _is_full(sch: s_tir.Schedule, block: Any, rows: Rows) -> bool:
    found = extents(sch, sch.get_loops(block))
    return len(found) == rows.lead + rows.trail and any(e != 1 for e in found[rows.lead :])


def _bind_last(sch: s_tir.Schedule, block: Any, rows: Rows, *, full: bool) -> Any:
    """Bind the loops of the final block; return the loop under which a whole row is computed."""
    loops = list(sch.get_loops(block)) or [sch.add_unit_loop(block)]
    outer = loops[: -rows.inner] if full else loops
    outer = outer or [sch.add_unit_loop(loops[0])]
    is_square = not rows.steps and len(outer) > 1 and _is_square(sch, outer[-1], loops[len(outer) :])
    if rows.apart or is_square:
        # Attention scores are square, so their number of rows fits blockIdx.y, and so do most that are laid out apart.
        # Fused with the outer loops, TVM could not prove the bound, and would test it at each element.
        grid = sch.fuse(*outer[:-1]) if len(outer) > 2 else outer[0]
        second, row = sch.split(outer[-1], [None, rows.rows])
        sch.bind(grid, "blockIdx.x")
        sch.bind(second, "blockIdx.y")
        sch.bind(row, "threadIdx.y")
    else:
        row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        grid, row = sch.split(row, [None, rows.rows])
        sch.bind(grid, "blockIdx.x")
        sch.bind(row, "threadIdx.y")
    if full:
        _spread(sch, loops[-rows.inner :], rows, vector=True)
    else:  # one thread writes the result of a row
        one = sch.add_unit_loop(block)
        _, thread = sch.split(one, [None, rows.threads])
        sch.bind(thread, "threadIdx.x")
    return row


def _is_square(sch: s_tir.Schedule, lead: Any, trail: list[Any]) -> bool:
    """Tell whether the number of rows and their length depend on the same symbolic dim."""
    lengths = [e for e in extents(sch, trail) if not isinstance(e, int)]
    count = extents(sch, [lead])[0]
    return not isinstance(count, int) and any(variables(count) & variables(length) for length in lengths)


def _spread(sch: s_tir.Schedule, loops: list[Any], rows: Rows, *, vector: bool) -> None:
    """Distribute the loops along a row over threads."""
    if not rows.steps:
        fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
        length = extents(sch, [fused])[0]
        several = 1 if isinstance(length, int) and length < UNROLLED * rows.threads else UNROLLED
        step, several, thread = sch.split(fused, [None, several, rows.threads])
        sch.annotate(step, PARTITION, ann_val=True)
        sch.reorder(thread, step, several)
        sch.bind(thread, "threadIdx.x")
        sch.unroll(several)
        return
    if rows.exact:
        step, thread, element = loops
    else:
        step, thread = sch.split(loops[0], [rows.steps, rows.threads])
        element = loops[1] if rows.width > 1 else None
    # TVM requires loops that the reduction does not depend on outside of the thread loop, even if of one iteration.
    sch.reorder(*([thread, step] if rows.steps > 1 else [step, thread]), *([element] if element is not None else []))
    sch.bind(thread, "threadIdx.x")
    sch.unroll(step)
    if element is not None and vector:
        sch.vectorize(element)
    elif element is not None:
        sch.unroll(element)


def _compute_at_row(sch: s_tir.Schedule, block: Any, row: Any, rows: Rows, *, full: bool) -> None:
    """Compute the part of a block that a row needs under the loop of that row."""
    if full and is_spatial(sch, block) and not rows.steps:
        raise ScheduleError("a row is too long to hold intermediate values")
    value = sch.get(block).body.value
    loaded = isinstance(value, TensorLoad) and value.source.scope() == "global"
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, row, preserve_unit_loops=True)
    if full:  # per-row scalars are computed redundantly by each thread
        _spread(sch, list(sch.get_loops(block))[-rows.inner :], rows, vector=loaded)


def _split_on_threads(sch: s_tir.Schedule, block: Any, rows: Rows) -> None:
    """Split the last axis of a block, and of the registers that it writes, into step, thread and element."""
    index_map = tirx.IndexMap.from_func(rows.split, ndim=len(sch.get(block).iter_vars))
    sch.transform_block_layout(block, index_map)
    buffer = sch.get(block).writes[0].source
    if is_spatial(sch, block) and not is_parameter(sch, buffer):
        rank = len(buffer.shape)
        sch.transform_layout(block, ("write", 0), tirx.IndexMap.from_func(rows.split, ndim=rank))


def _stage(sch: s_tir.Schedule, first: Any, found: list[Any]) -> Any:
    """Stage the first reduction's operand in shared memory for all blocks that read its rows."""
    regions = [region.source for region in sch.get(first).reads]
    index, operand = next((i, b) for i, b in enumerate(regions) if is_parameter(sch, b) and len(b.shape) > 1)
    return sch.cache_read(first, index, "shared.dyn", [block for block in found if reads_row(sch, block, operand)])


def _fill(sch: s_tir.Schedule, stage: Any, row: Any, rows: Rows) -> None:
    """Copy a row to shared memory as vectors with all its threads."""
    sch.compute_at(stage, row, preserve_unit_loops=True)
    loop = list(sch.get_loops(stage))[-1]
    steps = -(-extents(sch, [loop])[0] // (rows.threads * rows.width))
    together = next(n for n in range(STAGED, 0, -1) if not steps % n)  # only the last group is guarded
    _, several, thread, vector = sch.split(loop, [None, together, rows.threads, rows.width])
    sch.bind(thread, "threadIdx.x")
    sch.unroll(several)
    sch.vectorize(vector)


def _keep_own(sch: s_tir.Schedule, block: Any, rows: Rows) -> None:
    """Index the registers that a block writes by step and thread, so that each thread holds only its own vectors."""
    buffer = sch.get(block).writes[0].source
    if not is_spatial(sch, block) or buffer.scope() != "local":
        return
    axis = len(buffer.shape) - (2 if rows.width > 1 else 1)

    def thread_index(*index: Any) -> list[Any]:
        vector = index[axis]
        return [*index[:axis], vector // rows.threads, vector % rows.threads, *index[axis + 1 :]]

    index_map = tirx.IndexMap.from_func(thread_index, ndim=len(buffer.shape))
    sch.transform_layout(block, ("write", 0), index_map, assume_injective_transform=True)

"""Schedules normalizations of groups of channels, such as GroupNorm of images: a thread block holds a group.

With channels last a group lies in runs of its few channels. A block of the function copies groups to rows, which
reductions read; the last one computes the image, in its own order, of elements of rows and of statistics. Here all of
them run over groups and their elements, so that rows stay in registers.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir import ScheduleError
from tvm_ffi import structural_map

from packager.graph.dataflow import same
from packager.graph.identity import IdentityMap, IdentitySet, same_objects
from packager.lower.blocks import (
    VECTOR_BYTES,
    blocks,
    check_reductions,
    extents,
    inline,
    is_parameter,
    is_reduction,
    is_spatial,
    itemsize,
    loads_of,
    read_index,
    reads_of,
    schedule_of,
)
from packager.lower.cuda.rows.layout import MAX_THREADS, SEVERAL_THREADS, WARP, Rows

# The most bytes of a group that a thread holds, as 32 registers, and how many elements are enough for it.
HELD_BYTES, ENOUGH = 128, 8
# Threads that exchange values as whole warps do: TVM's code for other numbers has no barrier between threads of a warp.
PARTS_OF_WARPS = (16, 8, 4, 2)


def schedule_group_rows(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind such a function to threads. Raises ScheduleError if it is another, or a group is too long for registers."""
    sch = schedule_of(primfunc)
    check_reductions(sch)
    name = sch.get(_copy(sch)).name_hint
    inline(sch, lambda sch, block: sch.get(block).name_hint != name)
    copy, *reductions, end = blocks(sch)
    if not all(is_reduction(sch, block) for block in reductions) or not is_spatial(sch, end):
        raise ScheduleError("more than a copy, reductions of rows, and an image computed of them")
    loading, store = _run_over_groups(sch, copy, end)
    rows = _rows(sch, copy, loading, store)
    found = [*loading, copy, *reductions, end, store]
    names = [sch.get(block).name_hint for block in found]
    for block in found:
        _split_on_threads(sch, block, rows)
    # The schedule does not simplify quotients and remainders of (step * threads + thread) * width + element.
    sch = schedule_of(s_tir.transform.StmtSimplify()(sch.mod)["main"])
    *inner, end, store = (sch.get_sblock(each, func_name="main") for each in names)
    grid = sch.fuse(*sch.get_loops(store)[:2])
    sch.bind(grid, "blockIdx.x")
    sch.set_scope(end, 0, "local")
    sch.compute_at(end, _spread(sch, store, vector=True), preserve_unit_loops=True)
    sch.unroll(sch.get_loops(end)[-1])
    for number, block in reversed([*enumerate(inner)]):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, grid, preserve_unit_loops=True)
        _spread(sch, block, vector=number < len(loading))
    return sch.mod["main"]


def threads_of(length: int, width: int, size: int) -> int:
    """Return how many threads hold a group of ``length`` elements of ``size`` bytes in vectors of ``width``.

    0 if it is too long, or if no number of threads divides it.
    """
    vectors, enough = length // width, min(ENOUGH, length // WARP)
    for most, least in ((SEVERAL_THREADS, enough), (SEVERAL_THREADS, 0), (MAX_THREADS, 0)):
        numbers: list[int] = [*range(most, 0, -WARP), *PARTS_OF_WARPS]
        for threads in numbers:
            held, allowed = vectors // threads * width, HELD_BYTES // size if threads >= WARP else WARP
            if vectors % threads == 0 and least <= held <= allowed:
                return threads
    return 0


def _copy(sch: s_tir.Schedule) -> Any:
    """Return the block that copies groups to rows, which the first reduction reads in order."""
    first = next((block for block in blocks(sch) if is_reduction(sch, block)), None)
    makers = [] if first is None else list(sch.get_producers(first))
    if len(makers) != 1 or not is_spatial(sch, makers[0]):
        raise ScheduleError("no reduction of what one block copies")
    own = [var.var for var in sch.get(first).iter_vars]
    read = loads_of(sch, first, sch.get(makers[0]).writes[0].source)
    if len(own) != 3 or not all(same_objects(load.indices, own) for load in read):
        raise ScheduleError("rows are not read in order")
    return makers[0]


def _run_over_groups(sch: s_tir.Schedule, copy: Any, end: Any) -> tuple[list[Any], Any]:
    """Have the last block run over groups and their elements; return blocks that load operands, and one that stores.

    Raises ScheduleError unless the image reads an element of a row for each of its own.
    """
    own = [var.var for var in sch.get(end).iter_vars]
    read = loads_of(sch, end, sch.get(copy).writes[0].source)
    if not read or any(str(load.indices) != str(read[0].indices) for load in read):
        raise ScheduleError("the image reads no row, or several elements of one")

    def over_groups(*index: Any) -> list[Any]:
        places = IdentityMap(zip(own, index, strict=True))
        return [structural_map(i, (tirx.Var, lambda v: places.get(v, v))) for i in read[0].indices]

    to_groups = tirx.IndexMap.from_func(over_groups, ndim=len(own))
    shape = tuple(sch.get(end).writes[0].source.shape)
    images = IdentitySet(
        buffer
        for block in (copy, end)
        for buffer in reads_of(sch, block)
        if is_parameter(sch, buffer) and same(tuple(buffer.shape), shape)
    )
    loading = []
    for buffer in images:
        users = [block for block in (copy, end) if loads_of(sch, block, buffer)]
        loading.append(sch.cache_read(users[0], read_index(sch, users[0], buffer), "local", users))
    store = sch.cache_write(end, 0, "local")
    for block in (*loading, end, store):
        sch.transform_block_layout(block, to_groups)
    for block in (*loading, end):
        sch.transform_layout(block, ("write", 0), to_groups)
    return loading, store


def _rows(sch: s_tir.Schedule, copy: Any, loading: list[Any], store: Any) -> Rows:
    """Return the layout of groups on threads, in the longest vectors. Raises ScheduleError if there is none."""
    images = [*(sch.get(block).reads[0].source for block in loading), sch.get(store).writes[0].source]
    length, size = extents(sch, sch.get_loops(store))[-1], itemsize(sch.get(copy).writes[0].source)
    if not isinstance(length, int):
        raise ScheduleError("groups of unknown length")
    width = VECTOR_BYTES // min(map(itemsize, images))
    while width:
        threads = threads_of(length, width, size)
        if threads and (width == 1 or all(_moves_vectors(sch, block, width) for block in (*loading, store))):
            return Rows(2, 1, width, threads, length // (threads * width), 1, exact=True)
        width //= 2
    raise ScheduleError("a group is too long for registers, or no number of threads divides it")


def _moves_vectors(sch: s_tir.Schedule, block: Any, width: int) -> bool:
    """Whether so many neighbors in a row are aligned vectors of the image that a block reads or writes."""
    *outer, last = sch.get(block).iter_vars
    length, body = int(last.dom.extent), sch.get(block).body
    if length % width:
        return False
    vector, element = (tirx.Var(name, last.var.ty.dtype) for name in ("vector", "element"))
    analyzer = sym.Analyzer()
    for each in outer:
        analyzer.bind(each.var, each.dom)
    analyzer.bind(vector, ir.Range(0, length // width))
    analyzer.bind(element, ir.Range(0, width))

    def places(indices: Any, at: Any) -> list[Any]:
        return [structural_map(i, (tirx.Var, lambda v: at if v.same_as(last.var) else v)) for i in indices]

    for indices in (body.value.indices, body.indices):
        starts, ends = places(indices, vector * width), places(indices, vector * width + element)
        aligned = analyzer.modular_set(analyzer.simplify(starts[-1]))
        starts[-1] = starts[-1] + element
        if not all(map(analyzer.can_prove_equal, starts, ends)):
            return False
        if int(aligned.coeff) % width or int(aligned.base) % width:
            return False
    return True


def _split_on_threads(sch: s_tir.Schedule, block: Any, rows: Rows) -> None:
    """Split the elements of a group, in a block and in registers that it writes, into step, thread and element."""
    sch.transform_block_layout(block, tirx.IndexMap.from_func(rows.thread_index, ndim=len(sch.get(block).iter_vars)))
    buffer = sch.get(block).writes[0].source
    if is_spatial(sch, block) and not is_parameter(sch, buffer):
        sch.transform_layout(block, ("write", 0), tirx.IndexMap.from_func(rows.thread_index, ndim=3))


def _spread(sch: s_tir.Schedule, block: Any, *, vector: bool) -> Any:
    """Bind the loops of a group's elements; return the last one around those of vectors."""
    step, thread, element = list(sch.get_loops(block))[-3:]
    # TVM requires the loops of a reduction to be the innermost ones, but those of one iteration.
    alone = extents(sch, [step]) == [1]
    sch.reorder(*([step, thread] if alone else [thread, step]), element)
    sch.bind(thread, "threadIdx.x")
    if not alone and extents(sch, [element]) == [1]:
        step = sch.fuse(step, element)
        sch.unroll(step)
        return step
    sch.unroll(step)
    (sch.vectorize if vector else sch.unroll)(element)
    return thread if alone else step

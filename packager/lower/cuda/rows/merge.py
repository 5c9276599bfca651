"""Gives rows that run along several axes, as those of instance normalizations of volumes, one axis instead.

The schedules of rows hold vectors of one contiguous axis in registers or in shared memory. Where rows themselves have
several axes, as those of images with channels last, these are merged, too: rows that share a thread block are found by
quotients of quotients otherwise, which TVM does not know for the quasi-affine bindings that they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx.buffer import is_buffer_var

from packager.graph.identity import IdentitySet, same_objects
from packager.lower.blocks import blocks, extents, is_reduction, kinds, loads, variables


def merge_rows(sch: s_tir.Schedule) -> s_tir.Schedule:
    """Merge the axes along which rows of a normalization run; parameters that have them are seen with fewer axes.

    Raises ScheduleError if rows are read once only, run along one axis, or if not all extents are known.
    """
    found = blocks(sch)
    reduction = next((block for block in found if is_reduction(sch, block)), None)
    if reduction is None:
        raise ScheduleError("no reduction")
    sizes, trail = extents(sch, sch.get_loops(reduction)), kinds(sch, reduction).count(tirx.IterVar.CommReduce)
    shapes = [list(p.shape) for p in sch.mod["main"].params if is_buffer_var(p)]
    if not all(isinstance(e, tirx.IntImm) for shape in shapes for e in shape) or not all(
        isinstance(e, int) for e in sizes
    ):
        raise ScheduleError("extents are not known")
    full = [block for block in found if extents(sch, sch.get_loops(block)) == sizes]
    if trail < 2 or len(full) < 2:
        raise ScheduleError("rows run along one axis, or are read once")
    rows = sizes[-trail:]
    for block in full:
        _check(sch, block, rows)
    for block in full:
        _merge_axes(sch, block, rows)
    # Indices become quotients and remainders of the merged axis, which cancel.
    return s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod), error_render_level="none")


def _check(sch: s_tir.Schedule, block: Any, rows: Sequence[int]) -> None:
    """Raise ScheduleError unless a block reads and writes along its last axes in order, or not along them at all."""
    axes = [var.var for var in sch.get(block).iter_vars]
    last = axes[-len(rows) :]
    if len(axes) != len(sch.get_loops(block)):
        raise ScheduleError("loops and block variables do not correspond")
    for load in loads(sch.get(block).body):
        if _has(load.source, rows) and not same_objects(list(load.indices)[-len(rows) :], last):
            raise ScheduleError("a row is not read in order")


def _merge_axes(sch: s_tir.Schedule, block: Any, rows: Sequence[int]) -> None:
    def merged(*index: Any) -> list[Any]:
        position = index[-len(rows)]
        for at, extent in zip(index[-len(rows) + 1 :], rows[1:], strict=True):
            position = position * extent + at
        return [*index[: -len(rows)], position]

    count = len(sch.get(block).iter_vars)
    sch.transform_block_layout(block, tirx.IndexMap.from_func(merged, ndim=count))
    for kind in ("read", "write"):
        regions = sch.get(block).reads if kind == "read" else sch.get(block).writes
        for number, region in enumerate(regions):
            if _has(region.source, rows):  # of the blocks before this one has changed those that both have
                sch.transform_layout(
                    block, (kind, number), tirx.IndexMap.from_func(merged, ndim=len(region.source.shape))
                )


def _has(buffer: Any, rows: Sequence[int]) -> bool:
    """Whether the last axes of a buffer are those of rows."""
    shape = list(buffer.shape)[-len(rows) :]
    return len(shape) == len(rows) and all(int(a) == b for a, b in zip(shape, rows, strict=True))


def merge_leading_axes(sch: s_tir.Schedule) -> s_tir.Schedule:
    """Merge leading axes, along which no row runs, that are side by side in all that has them.

    Parameters that have them are seen with fewer axes. Raises ScheduleError without a reduction.
    """
    found = blocks(sch)
    reduction = next((block for block in found if is_reduction(sch, block)), None)
    if reduction is None:
        raise ScheduleError("no reduction")
    axis = len(kinds(sch, reduction)) - kinds(sch, reduction).count(tirx.IterVar.CommReduce) - 2
    while axis >= 0:
        outer, inner = extents(sch, sch.get_loops(reduction))[axis : axis + 2]
        if isinstance(outer, int) and isinstance(inner, int):
            places = [_places(sch, block, axis, [outer, inner]) for block in found]
            if all(each is not None for each in places):
                _merge_pair(sch, found, axis, inner, places)
                sch = s_tir.Schedule(s_tir.transform.StmtSimplify()(sch.mod), error_render_level="none")
                found = blocks(sch)
                reduction = next(block for block in found if is_reduction(sch, block))
        axis -= 1
    return sch


def _places(sch: s_tir.Schedule, block: Any, axis: int, sizes: list[int]) -> dict[tuple[str, int], int] | None:
    """Return at which of its axes each region that has them has two axes of a block; None if not both as a whole."""
    pair, body = [var.var for var in sch.get(block).iter_vars[axis : axis + 2]], sch.get(block).body
    if len(pair) < 2 or extents(sch, sch.get_loops(block))[axis : axis + 2] != sizes:
        return None
    if not isinstance(body, tirx.BufferStore):
        return None
    found: dict[tuple[str, int], int] = {}
    accesses = [(load.source, list(load.indices)) for load in loads(body)]
    accesses.append((sch.get(block).writes[0].source, list(body.indices)))
    regions = {("read", number): region.source for number, region in enumerate(sch.get(block).reads)}
    regions["write", 0] = sch.get(block).writes[0].source
    for source, indices in accesses:
        used = [at for at, index in enumerate(indices) if variables(index) & IdentitySet(pair)]
        if not used:
            continue
        at = used[0]
        shape = [getattr(extent, "value", None) for extent in source.shape]
        if len(used) != 2 or not same_objects(indices[at : at + 2], pair) or shape[at : at + 2] != sizes:
            return None
        places = [key for key, region in regions.items() if region.same_as(source)]
        if any(found.setdefault(key, at) != at for key in places):
            return None
    return found


def _merge_pair(sch: s_tir.Schedule, found: list[Any], axis: int, inner: int, places: list[Any]) -> None:
    def merged(at: int) -> Any:
        return lambda *index: [*index[:at], index[at] * inner + index[at + 1], *index[at + 2 :]]

    # A buffer of several blocks changes once, by the first of them.
    changed: list[Any] = []
    regions = [
        (block, kind, number, at, (sch.get(block).reads if kind == "read" else sch.get(block).writes)[number].source)
        for block, own in zip(found, places, strict=True)
        for (kind, number), at in own.items()
    ]
    for block in found:
        count = len(sch.get(block).iter_vars)
        sch.transform_block_layout(block, tirx.IndexMap.from_func(merged(axis), ndim=count))
    for block, kind, number, at, source in regions:
        if source not in IdentitySet(changed):
            index_map = tirx.IndexMap.from_func(merged(at), ndim=len(source.shape))
            sch.transform_layout(block, (kind, number), index_map)
            changed.append(source)

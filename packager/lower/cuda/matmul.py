"""Schedules matmuls, and convolutions that are matmuls, by dlight's rules; float16 uses tensor cores."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError, dlight
from tvm.s_tir.dlight.gpu.matmul import MatmulTensorization
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.dataflow import is_one
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, factors_of, is_reduction, loads, schedule_of, variables

# dlight reads the architecture as a number, and uses nothing newer than the tensor cores of sm_70.
# The minimum M, N and K for which tensor cores pay off, even if most of a tile is padding.
MIN_SIZE = 32
# The largest grid dimension along y and z.
MAX_BLOCKS = 65535
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_shared_memory_per_block": 49152})


def schedule_matmul(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a matmul and its elementwise epilogue to threads. Raises ScheduleError if the rule does not apply."""
    sch = schedule_of(primfunc)
    reductions = [block for block in blocks(sch) if is_reduction(sch, block)]
    if len(reductions) != 1 or not _is_product(sch, reductions[0]):
        raise ScheduleError("not a matmul")
    rules = [dlight.gpu.GEMV(), dlight.gpu.Matmul()]
    if _fits_tensor_cores(sch, reductions[0]):
        rules.insert(0, MatmulTensorization())
    for rule in rules:
        with TARGET, _stacks_without_lines():
            found = _apply(rule, primfunc)
        if found is not None:
            return _large_grid(found.mod["main"])
    raise ScheduleError("no dlight rule schedules this matmul")


def _large_grid(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the symbolic grid axis blockIdx.x, the only one that may exceed 65,535 blocks."""
    extents: dict[str, Any] = {}
    for loop in nodes_of(primfunc.body, st.For):
        if loop.thread_binding is not None:
            extents.setdefault(str(loop.thread_binding.thread_tag), loop.extent)
    large = [tag for tag in ("blockIdx.y", "blockIdx.z") if not _is_at_most(extents.get(tag, 1), MAX_BLOCKS)]
    if len(large) != 1 or not _is_at_most(extents.get("blockIdx.x", 1), MAX_BLOCKS):
        return primfunc
    swapped = {large[0]: "blockIdx.x", "blockIdx.x": large[0]}

    def swap(loop: Any) -> Any:
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if tag not in swapped:
            return loop
        old = loop.thread_binding
        binding = tirx.IterVar(old.dom, old.var, old.iter_type, swapped[tag])
        return st.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, binding, loop.annotations)

    return primfunc.with_body(structural_map(primfunc.body, [(st.For, swap)]))


def _is_at_most(extent: Any, most: int) -> bool:
    return int(extent) <= most if isinstance(extent, (int, tirx.IntImm)) else False


def _apply(rule: Any, primfunc: tirx.PrimFunc) -> s_tir.Schedule | None:
    try:
        return rule.apply(primfunc, TARGET, False)
    except Exception:  # rules that do not apply raise errors of many types
        return None


def _fits_tensor_cores(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a float16 matmul is large enough in M, N and K; tiles of 128 x 128 x 64 are padded."""
    block = sch.get(block)
    reads = [r for r in block.reads if not r.source.same_as(block.writes[0].source)]
    if any(str(region.source.dtype) != "float16" for region in reads):
        return False
    used = [variables(*(axis.min for axis in region.region)) for region in reads]
    sizes: dict[tuple[int, ...], int] = {}  # M, N and K; without the batch axes, which both operands keep
    for var in block.iter_vars:
        reduced = var.iter_type == tirx.IterVar.CommReduce
        side = tuple(var.var in read for read in used)
        extent = int(var.dom.extent) if isinstance(var.dom.extent, tirx.IntImm) else MIN_SIZE
        if reduced or not all(side):
            sizes[(reduced, *side)] = sizes.get((reduced, *side), 1) * extent
    return len(sizes) == 3 and all(size >= MIN_SIZE for size in sizes.values())


def _is_product(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block is a matmul: its two operands share the reduction axes and differ in the others.

    Batch axes, which both keep, must come first: otherwise dlight's GEMV rule mixes up the axes of the result.
    """
    operands = [loads(factor) for factor in factors_of(sch, block) or ()]
    if list(map(len, operands)) != [1, 1]:
        return False
    iters = sch.get(block).iter_vars
    used = [variables(*load.indices) for (load,) in operands]
    summed = IdentitySet(v.var for v in iters if v.iter_type == tirx.IterVar.CommReduce)
    kept = [v.var for v in iters if v.iter_type == tirx.IterVar.DataPar and not is_one(v.dom.extent)]
    in_batch = [var in used[0] and var in used[1] for var in kept]
    batch_first = in_batch == sorted(in_batch, reverse=True)
    return (
        bool(summed & used[0] & used[1]) and any((var in used[0]) != (var in used[1]) for var in kept) and batch_first
    )


def _stack(_context: int = 1) -> list[inspect.FrameInfo]:
    """Return the caller frames as ``inspect.stack`` does, without source lines."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


@contextlib.contextmanager
def _stacks_without_lines() -> Iterator[None]:
    """Let ``inspect.stack`` look up no source lines, so that rules import tensor intrinsics in seconds.

    The first rule that uses tensor cores, of float16 or int8, imports TVM's intrinsics for them: TVM parses some
    hundred functions and inspects the call stack for each. The lines, which nothing uses, would take half a minute.
    """
    original = inspect.stack
    inspect.stack = _stack  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.stack = original

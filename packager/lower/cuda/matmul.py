"""Products of matrices, and convolutions that are such products: dlight's schedules, with tensor cores for float16."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError, dlight
from tvm.s_tir.dlight.gpu.matmul import MatmulTensorization
from tvm.tirx import stmt as st
from tvm_ffi import structural_map, structural_walk

from packager.graph.identity import IdentitySet
from packager.lower.cuda.blocks import blocks, is_reduction, loads, schedule_of, variables
from packager.lower.cuda.tensor_intrinsics import load_tensor_intrinsics

# dlight reads the architecture as a number, and uses nothing newer than the tensor cores of sm_70.
# Rows, columns and length of a product from which on tensor cores pay, though most of a tile be padding.
SMALLEST = 32
# What the grid may have along its second and third axis.
MOST_BLOCKS = 65535
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})


def schedule_matmul(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a function with one sum of products, and what is computed elementwise from it, to threads.

    Raises ScheduleError for a function of another form.
    """
    sch = schedule_of(primfunc)
    reductions = [block for block in blocks(sch) if is_reduction(sch, block)]
    if len(reductions) != 1 or not _is_product(sch, reductions[0]):
        raise ScheduleError("the function is no product of matrices")
    rules = [dlight.gpu.GEMV(), dlight.gpu.Matmul()]
    if _fits_tensor_cores(sch, reductions[0]):
        load_tensor_intrinsics()
        rules.insert(0, MatmulTensorization())
    for rule in rules:
        with TARGET:
            found = _apply(rule, primfunc)
        if found is not None:
            return _large_grid(found.mod["main"])
    raise ScheduleError("no schedule for this product")


def _large_grid(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let the axis of the grid that depends on the shape be the first, the only one that may exceed 65,535 blocks."""
    extents: dict[str, Any] = {}

    def visit(loop: Any) -> None:
        if loop.thread_binding is not None:
            extents.setdefault(str(loop.thread_binding.thread_tag), loop.extent)

    structural_walk(primfunc.body, [(st.For, visit)])
    large = [tag for tag in ("blockIdx.y", "blockIdx.z") if not _is_at_most(extents.get(tag, 1), MOST_BLOCKS)]
    if len(large) != 1 or not _is_at_most(extents.get("blockIdx.x", 1), MOST_BLOCKS):
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
    except Exception:  # a rule that does not apply raises whatever the step raises that it fails in
        return None


def _fits_tensor_cores(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a product of float16 is large enough in each direction; tiles of 128 x 128 x 64 are filled up."""
    block = sch.get(block)
    reads = [r for r in block.reads if not r.source.same_as(block.writes[0].source)]
    if any(str(region.source.dtype) != "float16" for region in reads):
        return False
    used = [variables(*(axis.min for axis in region.region)) for region in reads]
    sizes: dict[tuple[int, ...], int] = {}  # of rows, columns and the sum; not of what both operands keep, the batch
    for var in block.iter_vars:
        reduced = var.iter_type == tirx.IterVar.CommReduce
        side = tuple(var.var in read for read in used)
        extent = int(var.dom.extent) if isinstance(var.dom.extent, tirx.IntImm) else SMALLEST
        if reduced or not all(side):
            sizes[(reduced, *side)] = sizes.get((reduced, *side), 1) * extent
    return len(sizes) == 3 and all(size >= SMALLEST for size in sizes.values())


def _is_product(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block sums products of two operands that share the axes of the sum, and differ in the others.

    What both keep, the batch, has to come first: dlight's products of a vector mix up the axes of the result otherwise.
    """
    value = getattr(sch.get(block).body, "value", None)
    if not isinstance(value, tirx.Add):
        return False
    factors = value.b
    while isinstance(factors, tirx.Cast):
        factors = factors.value
    if not isinstance(factors, tirx.Mul):
        return False
    left, right = loads(factors.a), loads(factors.b)
    if len(left) != 1 or len(right) != 1:
        return False
    iters = sch.get(block).iter_vars
    used = [variables(*load[0].indices) for load in (left, right)]
    summed = IdentitySet(v.var for v in iters if v.iter_type == tirx.IterVar.CommReduce)
    kept = [v.var for v in iters if v.iter_type == tirx.IterVar.DataPar and not _is_one(v.dom.extent)]
    in_batch = [var in used[0] and var in used[1] for var in kept]
    batch_first = in_batch == sorted(in_batch, reverse=True)
    return (
        bool(summed & used[0] & used[1]) and any((var in used[0]) != (var in used[1]) for var in kept) and batch_first
    )


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1

"""Kernels for GPUs that run in one launch: each has a run of its blocks ("horizontal fusion", Li et al. 2022,
"Automatic Horizontal Fusion for GPU Kernels")."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Kernel

_SPATIAL, _THREAD_INDEX = 0, 1  # tirx.IterVar.DataPar, ThreadIndex


@dataclass(frozen=True)
class Nest:
    """A kernel as two loops, over blocks and over the threads of one, around what a thread does."""

    block: Any
    thread: Any
    allocated: tuple[Any, ...]

    @property
    def blocks(self) -> int:
        """How many there are."""
        return int(self.block.extent)

    @property
    def threads(self) -> int:
        """How many a block has."""
        return int(self.thread.extent)


def nest_of(kernel: Kernel) -> Nest | None:
    """Return the loops of a kernel whose threads have nothing in common, and whose sizes are known; else None."""
    body = kernel.primfunc.body
    if kernel.scalars or not isinstance(body, s_tir.SBlockRealize):
        return None
    root = body.block
    block = _thread_loop(root.body, "blockIdx.x")
    thread = _thread_loop(block.body, "threadIdx.x") if block is not None else None
    if block is None or thread is None or not _is_independent(thread.body):
        return None
    if any(buffer.scope() != "local" for buffer in root.alloc_buffers):
        return None
    return Nest(block, thread, tuple(root.alloc_buffers))


def merge(kernels: Sequence[Kernel], symbol: str) -> Kernel:
    """Return a kernel with the parameters of all, each of which has ``nest_of``; none writes what another accesses."""
    renewed = [s_tir.renew_defs(kernel.primfunc) for kernel in kernels]
    nests = [nest_of(Kernel(k.symbol, k.parameters, primfunc=f)) for k, f in zip(kernels, renewed, strict=True)]
    found = [nest for nest in nests if nest is not None]
    assert len(found) == len(kernels)
    block, thread = tirx.Var("block", "int64"), tirx.Var("thread", "int64")
    threads = max(nest.threads for nest in found)
    ends = list(itertools.accumulate(nest.blocks for nest in found))
    body: Any = None
    for nest, end in zip(reversed(found), reversed(ends), strict=True):
        first = tirx.const(end - nest.blocks, "int64")
        own = _at(nest, block - first, thread)
        if nest.threads < threads:
            own = st.IfThenElse(thread < tirx.const(nest.threads, "int64"), own, None)
        body = own if body is None else st.IfThenElse(block < tirx.const(end, "int64"), own, body)
    body = _bound(thread, threads, "threadIdx.x", body)
    body = _bound(block, ends[-1], "blockIdx.x", body)
    allocated = [buffer for nest in found for buffer in nest.allocated]
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=allocated)
    function = tirx.PrimFunc([p for f in renewed for p in f.params], s_tir.SBlockRealize([], True, root))
    function = function.with_attr("tirx.noalias", True).with_attr("s_tir", True)
    return Kernel(symbol, tuple(p for kernel in kernels for p in kernel.parameters), primfunc=function)


def _thread_loop(statement: Any, tag: str) -> Any:
    """Return a statement that is a loop over threads, of a number that is known; else None."""
    if not isinstance(statement, st.For) or int(statement.kind) != st.ForKind.THREAD_BINDING:
        return None
    known = all(isinstance(each, tirx.IntImm) for each in (statement.min, statement.extent))
    return statement if known and int(statement.min) == 0 and _tag(statement) == tag else None


def _tag(loop: Any) -> str:
    return str(loop.thread_binding.thread_tag)


def _is_independent(body: Any) -> bool:
    """Whether a thread shares nothing with others of its block: no memory, no barrier, no reduction."""
    if any(int(loop.kind) == st.ForKind.THREAD_BINDING for loop in nodes_of(body, st.For)):
        return False
    if any(str(getattr(call.op, "name", "")).endswith(("storage_sync", "allreduce")) for call in nodes_of(body, Call)):
        return False
    if any(allocation.buffer.scope() != "local" for allocation in nodes_of(body, st.AllocBuffer)):
        return False
    return all(
        all(int(axis.iter_type) == _SPATIAL for axis in block.iter_vars)
        and all(buffer.scope() == "local" for buffer in block.alloc_buffers)
        for block in nodes_of(body, s_tir.SBlock)
    )


def _at(nest: Nest, block: Any, thread: Any) -> Any:
    """Return what a thread of a block does."""

    def replaced(variable: Any) -> Any:
        if variable.same_as(nest.block.loop_var):
            return _of_type(block, variable)
        return _of_type(thread, variable) if variable.same_as(nest.thread.loop_var) else variable

    return structural_map(nest.thread.body, (tirx.Var, replaced))


def _of_type(value: Any, variable: Any) -> Any:
    return value if str(value.ty) == str(variable.ty) else tirx.Cast(variable.ty, value)


def _bound(variable: Any, extent: int, tag: str, body: Any) -> Any:
    binding = tirx.IterVar(None, tirx.Var(tag, "int64"), _THREAD_INDEX, tag)
    zero, count = tirx.const(0, "int64"), tirx.const(extent, "int64")
    return st.For(variable, zero, count, st.ForKind.THREAD_BINDING, body, binding)

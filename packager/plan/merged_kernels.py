"""Finds kernels for GPUs that can run in one launch with others, each with a run of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.tirx import stmt as st

from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Kernel

_SPATIAL = 0  # tirx.IterVar.DataPar


@dataclass(frozen=True)
class Nest:
    """A kernel as loops over ``blocks``, and over the ``threads`` of one."""

    blocks: int
    threads: int


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
    return Nest(int(block.extent), int(thread.extent))


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

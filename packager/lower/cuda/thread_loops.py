"""Loops that are bound to threads and blocks of a grid without TVM's schedule primitives."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import PrimType
from tvm.tirx import stmt as st

# Threads of a block whose threads have nothing to do with each other.
GRID_THREADS = 256
_THREAD_INDEX = 1  # tirx.IterVar


def thread_loop(thread: Any, number: int, body: Any) -> Any:
    """Return a loop over the threads of a block."""
    return _binding(thread, "threadIdx.x", tirx.const(number, "int64"), body)


def block_loop(block: Any, number: Any, body: Any) -> Any:
    """Return a loop over the blocks of a grid."""
    return _binding(block, "blockIdx.x", tirx.Cast(PrimType("int64"), number), body)


def _binding(var: Any, tag: str, extent: Any, body: Any) -> Any:
    axis = tirx.IterVar(None, tirx.Var(tag, "int64"), _THREAD_INDEX, tag)
    return st.For(var, tirx.const(0, "int64"), extent, st.ForKind.THREAD_BINDING, body, thread_binding=axis)

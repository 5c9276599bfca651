"""What TVM's CUDA code generator has no right vectors for: booleans, and choices by them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import stmt as st
from tvm_ffi import structural_map, structural_walk

from packager.lower.cuda_blocks import variables

_CONDITIONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not, tirx.Select)


def _unroll_conditions(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Unroll vectorised loops in which each element is a boolean, or is chosen by one.

    TVM writes two bytes for each boolean of a vector, where memory has one; it has no type for more than four; and it
    declares the conditions of a vector ``Select`` with the type of its values, which nvcc refuses.
    """
    return function.with_body(structural_map(function.body, (st.For, _unrolled)))


def _unrolled(loop: Any) -> Any:
    if int(loop.kind) != st.ForKind.VECTORIZED or not _has_booleans(loop):
        return loop
    return st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.UNROLLED, loop.body)


def _has_booleans(loop: Any) -> bool:
    found: list[Any] = []
    loads: list[Any] = []
    stores: list[Any] = []
    structural_walk(loop.body, [(kind, found.append) for kind in _CONDITIONS])
    structural_walk(loop.body, [(TensorLoad, loads.append), (st.BufferStore, stores.append)])
    found += [load for load in loads if load.source.dtype == "bool"]
    found += [index for store in stores if store.buffer.dtype == "bool" for index in store.indices]
    lane = loop.loop_var.__chandle__()
    return any(lane in variables(expr) for expr in found)


unroll_conditions = tirx.transform.prim_func_pass(_unroll_conditions, opt_level=0, name="UnrollConditions")

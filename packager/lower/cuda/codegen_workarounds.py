"""Workarounds for bugs in TVM's CUDA code generator.

- Vectors of bool: elements are written as two bytes, but memory has one; there is no type for more than four. The
  condition of a vector ``Select`` is declared with the type of its values, which nvcc rejects. Both are unrolled.
- Vectors of more than four indices are packed into half as many registers and filled one by one: unrolled too.
- Infinities of bfloat16 are written as names that CUDA does not have: cast from float32.
- Local copies are named after parameters, thus after the model's tensors, whose names may begin with a digit: renamed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import stmt as st
from tvm.tirx.buffer import is_buffer_var
from tvm_ffi import structural_map

from packager.errors import BackendError
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import variables

_BFLOAT16 = PrimType("bfloat16")
# The longest vector of indices.
MAX_INDICES = 4
_CONDITIONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not, tirx.Select)


@tirx.transform.prim_func_pass(opt_level=0, name="UnrollUnsupportedVectors")  # type: ignore[untyped-decorator]
def unroll_unsupported_vectors(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Unroll vectorized loops that the code generator writes wrong."""
    return function.with_body(structural_map(function.body, (st.For, _unrolled)))


def _unrolled(loop: Any) -> Any:
    if int(loop.kind) != st.ForKind.VECTORIZED or not (_has_booleans(loop) or _gathers(loop)):
        return loop
    return st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.UNROLLED, loop.body)


def _has_booleans(loop: Any) -> bool:
    """Tell whether an element is a bool, or is selected by one."""
    found = nodes_of(loop.body, *_CONDITIONS)
    for buffer, indices in _accesses(loop):
        if buffer.dtype == "bool":
            found += indices
    return loop.loop_var in variables(*found)


def _gathers(loop: Any) -> bool:
    """Tell whether a vector of more than four elements is gathered from addresses that are not contiguous."""
    if int(loop.extent) <= MAX_INDICES:
        return False
    analyzer = Analyzer()
    lane = loop.loop_var

    def substituted(index: Any, number: int) -> Any:
        return structural_map(
            index, (tirx.Var, lambda var: tirx.const(number, str(lane.ty)) if var.same_as(lane) else var)
        )

    return any(
        not analyzer.can_prove_equal(substituted(index, number) - substituted(index, 0), number)
        for _, indices in _accesses(loop)
        for index in indices
        if lane in variables(index)
        for number in range(1, int(loop.extent))
    )


def _accesses(node: Any) -> list[tuple[Any, Sequence[Any]]]:
    """Return (buffer, indices) of every load and store."""
    found = nodes_of(node.body, TensorLoad, st.BufferStore)
    return [(a.source if isinstance(a, TensorLoad) else a.buffer, a.indices) for a in found]


@tirx.transform.prim_func_pass(opt_level=0, name="CastInfinities")  # type: ignore[untyped-decorator]
def cast_infinities(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Write infinities and NaN as float32 constants with a cast."""

    def cast(value: Any) -> Any:
        if value.ty != _BFLOAT16 or math.isfinite(value.value):
            return value
        return tirx.Cast(_BFLOAT16, tirx.FloatImm(PrimType("float32"), value.value))

    return function.with_body(structural_map(function.body, (tirx.FloatImm, cast)))


def check_registers(function: tirx.PrimFunc) -> None:
    """Raise BackendError if a thread indexes its registers by its thread number.

    Then one stage of a schedule expects values that another thread computed: registers are not shared.
    """
    statements = nodes_of(function.body, st.AttrStmt)
    threads = IdentitySet(statement.node.var for statement in statements if statement.attr_key == "thread_extent")
    for buffer, indices in _accesses(function):
        if buffer.scope() == "local" and threads & variables(*indices):
            raise BackendError(f"threads exchange {buffer.name!r} through registers")


def name_parameters(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with parameters renamed to valid C++ identifiers."""
    renamed = {
        parameter: tirx.decl_buffer(
            parameter.shape,
            parameter.dtype,
            f"_{parameter.name}",
            elem_offset=parameter.elem_offset,
            scope=parameter.scope(),
            layout=parameter.layout,
        )
        for parameter in primfunc.params
        if is_buffer_var(parameter) and parameter.name[:1].isdigit()
    }
    if not renamed:
        return primfunc

    def replace(variable: Any) -> Any:
        return renamed.get(variable, variable)

    body = structural_map(primfunc.body, (tirx.Var, replace))
    return tirx.PrimFunc([replace(p) for p in primfunc.params], body).with_attrs(dict(primfunc.attrs or {}))

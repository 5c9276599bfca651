"""Workarounds for bugs in TVM's CUDA code generator.

- Vectors of bool: elements are written as two bytes, but memory has one; there is no type for more than four. The
  condition of a vector ``Select`` is declared with the type of its values, which nvcc rejects. Both are unrolled.
- Vectors of more than four indices are packed into half as many registers and filled one by one: unrolled too.
- Infinities of bfloat16 are written as names that CUDA does not have: cast from float32.
- Variables are named after the model's tensors and dims, and their names are written as they are: whoever named them
  would write the kernel. They are renamed, last of all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.errors import BackendError
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import variables

_BFLOAT16 = PrimType("bfloat16")
# The longest vector of indices.
MAX_INDICES = 4
_IDENTIFIER = re.compile(r"[A-Za-z]")
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


@tirx.transform.prim_func_pass(opt_level=0, name="PlainNames")  # type: ignore[untyped-decorator]
def plain_names(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Rename variables to identifiers of C++ that mean nothing else: the code generator writes any name as it is."""
    scalars = IdentitySet(parameter for parameter in function.params if isinstance(parameter.ty, PrimType))
    renamed = IdentityMap[Any]()

    def plain(variable: Any) -> Any:
        if variable not in renamed:
            name = re.sub(r"[^\w.]", "_", variable.name, flags=re.ASCII)  # threadIdx.x has a meaning
            name = f"dim_{name}" if variable in scalars else name if _IDENTIFIER.match(name) else f"_{name}"
            renamed[variable] = variable if name == variable.name else tirx.Var(name, variable.ty)
        return renamed[variable]

    body = structural_map(function.body, (tirx.Var, plain))
    return tirx.PrimFunc([plain(p) for p in function.params], body).with_attrs(dict(function.attrs or {}))

"""Workarounds for bugs in TVM's CUDA code generator.

- Vectors of bool: elements are written as two bytes, but memory has one; there is no type for more than four. The
  condition of a vector ``Select`` is declared with the type of its values, which nvcc rejects. Both are unrolled.
- Vectors that a condition chooses are chosen element by element: where all elements of a vector have one condition, as
  in concatenations along channels, it becomes a branch.
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
from packager.lower.blocks import is_condition, itemsize, variables, without_casts

_BFLOAT16 = PrimType("bfloat16")
# The longest vector of indices.
MAX_INDICES = 4
# Of an array that a thread holds. All threads of an H200 that may run at once would have 9 GB of such.
MAX_LOCAL_BYTES = 32 << 10
# The most equal elements of four bytes that a vector has: there is no code for more.
MOST_EQUAL, WORD = 4, 4
_IDENTIFIER = re.compile(r"[A-Za-z]")
_CONDITIONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not, tirx.Select)


@tirx.transform.prim_func_pass(opt_level=0, name="BranchOnVectors")  # type: ignore[untyped-decorator]
def branch_on_vectors(function: tirx.PrimFunc, _module: Any, _context: Any) -> tirx.PrimFunc:
    """Make branches of conditions that choose a whole vector, each of which stores it."""
    return function.with_body(structural_map(function.body, (st.For, _branched)))


def _branched(loop: Any) -> Any:
    if int(loop.kind) != st.ForKind.VECTORIZED:
        return loop
    body = loop.body
    if isinstance(body, st.IfThenElse) and body.else_case is None:  # within bounds
        condition, cases = body.condition, [body.then_case, None]
    elif isinstance(body, st.BufferStore) and is_condition(chosen := without_casts(body.value)):
        condition, *values = chosen.args
        cases = [st.BufferStore(body.buffer, _cast(value, body.value), body.indices) for value in values]
        if any(isinstance(case.value, tirx.Cast) and _is_number(without_casts(case.value)) for case in cases):
            return loop  # of numbers but zero, which are cast
    else:
        return loop
    if not is_uniform(condition, loop.loop_var, int(loop.extent)):
        return loop

    def alone(case: Any) -> Any:
        if case is None:
            return None
        lane, count = tirx.Var(loop.loop_var.name, loop.loop_var.ty), int(loop.extent)
        if _is_number(getattr(case, "value", None)) and count > MOST_EQUAL and itemsize(case.buffer) == WORD:
            turn = tirx.Var(f"{lane.name}_turn", lane.ty)
            part = _substituted(case, loop.loop_var, turn * MOST_EQUAL + lane)
            inner = st.For(lane, loop.min, tirx.const(MOST_EQUAL, lane.ty), loop.kind, part)
            return st.For(turn, loop.min, tirx.const(count // MOST_EQUAL, lane.ty), st.ForKind.UNROLLED, inner)
        return _branched(st.For(lane, loop.min, loop.extent, loop.kind, _substituted(case, loop.loop_var, lane)))

    return st.IfThenElse(_substituted(condition, loop.loop_var, loop.min), *map(alone, cases))


def _cast(value: Any, like: Any) -> Any:
    """Return a value with the casts around another one; zero is one of the type that it is cast to."""
    if not isinstance(like, tirx.Cast):
        return value
    number = without_casts(value)
    return (
        tirx.const(0, like.ty)
        if _is_number(number) and number.value == 0
        else tirx.Cast(like.ty, _cast(value, like.value))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm)


def is_uniform(condition: Any, lane: Any, count: int) -> bool:
    """Whether a condition is the same for all values of ``lane``, from 0 to ``count`` - 1."""
    if lane not in variables(condition):
        return True
    if isinstance(condition, (tirx.And, tirx.Or)):
        return is_uniform(condition.a, lane, count) and is_uniform(condition.b, lane, count)
    if isinstance(condition, (tirx.GE, tirx.GT)):
        larger, smaller, ends = condition.a, condition.b, isinstance(condition, tirx.GT)
    elif isinstance(condition, (tirx.LE, tirx.LT)):
        larger, smaller, ends = condition.b, condition.a, isinstance(condition, tirx.LT)
    else:
        return False
    # It says that the difference is not negative: for differences from n * count to (n + 1) * count - 1.
    analyzer = Analyzer()
    difference = larger - smaller - int(ends)
    for rest, remainder in ((difference - lane, 0), (difference + lane, count - 1)):
        simple = analyzer.simplify(rest)
        multiple = analyzer.modular_set(simple)
        if lane not in variables(simple) and int(multiple.coeff) % count == 0:
            return int(multiple.base) % count == remainder
    return False


def _substituted(node: Any, variable: Any, value: Any) -> Any:
    return structural_map(node, (tirx.Var, lambda var: value if var.same_as(variable) else var))


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
        return _substituted(index, lane, tirx.const(number, str(lane.ty)))

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
    """Raise BackendError if a thread indexes its registers by its thread number, or has no place for what it holds.

    The first is a stage of a schedule that expects what another thread computed: registers are not shared. What
    registers do not hold is local memory, which a GPU has for all threads that may run at once.
    """
    statements = nodes_of(function.body, st.AttrStmt)
    threads = IdentitySet(statement.node.var for statement in statements if statement.attr_key == "thread_extent")
    for buffer, indices in _accesses(function):
        if buffer.scope() == "local" and threads & variables(*indices):
            raise BackendError(f"threads exchange {buffer.name!r} through registers")
        extents = list(buffer.shape)
        if buffer.scope() == "local" and all(isinstance(extent, tirx.IntImm) for extent in extents):
            held = math.prod(map(int, extents)) * itemsize(buffer)
            if held > MAX_LOCAL_BYTES:
                raise BackendError(f"a thread would hold {held} bytes of {buffer.name!r}")


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

"""Queries on blocks, and transformations of them, for the schedules of all devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm.s_tir import ScheduleError

from packager.graph.identity import IdentitySet, position
from packager.graph.rewrite import nodes_of

Transform = Callable[[s_tir.Schedule, Any], None]
Errors = type[Exception] | tuple[type[Exception], ...]
# The widest load or store of a thread, in bytes.
VECTOR_BYTES = 16
# Bytes of one operand that a thread handles at once if operands differ in element size.
MAX_WIDE_BYTES = 32
# What an extent counts as that is known at run time only, as of a batch, where a schedule depends on it.
UNKNOWN = 8
# Inlining stops above this expression size: a value used twice in each step doubles it each time.
MAX_NODES = 4096


def schedule_of(primfunc: tirx.PrimFunc) -> s_tir.Schedule:
    """Return a schedule of a PrimFunc as ``main``."""
    return s_tir.Schedule(tvm.IRModule({"main": primfunc}), error_render_level="none")


def blocks(sch: s_tir.Schedule) -> list[Any]:
    """Return the blocks of a PrimFunc in the order in which they run."""
    return list(sch.get_child_blocks(sch.get_sblock("root", func_name="main")))


def kinds(sch: s_tir.Schedule, block: Any) -> list[int]:
    """Return the iteration type of each variable of a block."""
    return [int(var.iter_type) for var in sch.get(block).iter_vars]


def check_reductions(sch: s_tir.Schedule) -> None:
    """Raise ScheduleError for reductions of several values at once, such as argmax: rules expect one store."""
    if any(is_reduction(sch, b) and not isinstance(sch.get(b).body, tirx.BufferStore) for b in blocks(sch)):
        raise ScheduleError("a reduction of more than one value")


def is_spatial(sch: s_tir.Schedule, block: Any) -> bool:
    return all(kind == tirx.IterVar.DataPar for kind in kinds(sch, block))


def is_reduction(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block is a reduction whose loops correspond one to one to its block variables."""
    found = kinds(sch, block)
    known = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    return tirx.IterVar.CommReduce in found and all(kind in known for kind in found)


def extents(sch: s_tir.Schedule, loops: Iterable[Any]) -> list[Any]:
    """Return the extent of each loop: an integer, or an expression over shape variables."""
    found = [sch.get(loop).extent for loop in loops]
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in found]


def reads_of(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the distinct buffers that a block reads, without the one that it writes."""
    written = IdentitySet(region.source for region in sch.get(block).writes)
    return [buffer for buffer in IdentitySet(r.source for r in sch.get(block).reads) if buffer not in written]


def is_parameter(sch: s_tir.Schedule, buffer: Any) -> bool:
    """Whether a buffer is a parameter of the function."""
    return any(buffer.same_as(parameter) for parameter in sch.mod["main"].params)


def read_index(sch: s_tir.Schedule, block: Any, buffer: Any) -> int:
    """Return the index of a buffer among those that a block reads."""
    return position((region.source for region in sch.get(block).reads), buffer)


def itemsize(buffer: Any) -> int:
    """Return the bytes of an element; 4 for bool: bool loads are not vectorized, so they must not limit the others."""
    if buffer.dtype == "bool":
        return 4
    return int(tvm.runtime.DataType(buffer.dtype).itemsize)


def variables(*exprs: Any) -> IdentitySet:
    """Return the variables in expressions."""
    return IdentitySet(variable for expr in exprs for variable in nodes_of(expr, tirx.Var))


def loads(node: Any) -> list[Any]:
    """Return every load in an expression or statement."""
    return nodes_of(node, tvm.ir.TensorLoad)


def loads_of(sch: s_tir.Schedule, block: Any, buffer: Any) -> list[Any]:
    """Return every load of a buffer in a block."""
    return [load for load in loads(sch.get(block).body) if load.source.same_as(buffer)]


def is_condition(expr: Any) -> bool:
    """Tell whether an expression is a select or if-then-else."""
    return isinstance(expr, tvm.ir.Call) and str(getattr(expr.op, "name", "")).endswith(".if_then_else")


def is_conditional(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether loads of a block are guarded by conditions, without which they may be out of bounds."""
    return any(map(is_condition, nodes_of(sch.get(block).body, tvm.ir.Call)))


def factors_of(sch: s_tir.Schedule, block: Any) -> tuple[Any, Any] | None:
    """Return the factors, if a block adds up products; else None."""
    value: Any = getattr(sch.get(block).body, "value", None)
    product = value.b if isinstance(value, tirx.Add) else None
    while isinstance(product, tirx.Cast):
        product = product.value
    return (product.a, product.b) if isinstance(product, tirx.Mul) else None


def is_movement(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block only moves, casts, joins or pads values."""
    value: Any = without_casts(getattr(sch.get(block).body, "value", None))
    if is_condition(value):
        return all(isinstance(v, (tvm.ir.TensorLoad, tirx.FloatImm, tirx.IntImm)) for v in alternatives(value))
    return isinstance(value, tvm.ir.TensorLoad)


def is_scatter(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether data choose a place for each element along the last axis."""
    last = sch.get(block).iter_vars[-1:]
    places = [load for index in getattr(sch.get(block).body, "indices", ()) for load in loads(index)]
    return any(last[0].var in variables(*load.indices) for load in places) if last else False


def without_casts(value: Any) -> Any:
    """Return what is cast."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def alternatives(value: Any) -> list[Any]:
    """Return the values that nested conditions choose from, such as the parts of a concatenation, without casts."""
    value = without_casts(value)
    return [part for each in value.args[1:] for part in alternatives(each)] if is_condition(value) else [value]


def is_aligned(sch: s_tir.Schedule, block: Any, load: Any, width: int) -> bool:
    """Tell whether a load reads aligned vectors along the innermost loop, or does not depend on that loop."""
    last = sch.get(block).iter_vars[-1].var
    if last not in variables(*load.indices):
        return True
    analyzer = sym.Analyzer()
    for each in sch.get(block).iter_vars:
        analyzer.bind(each.var, each.dom)
    *outer, inner = map(analyzer.simplify, load.indices)
    offset = analyzer.simplify(inner - last)
    multiple, length = analyzer.modular_set(offset), load.source.shape[-1]
    return (
        last not in variables(*outer, offset)
        and int(multiple.coeff) % width == int(multiple.base) % width == 0
        and (isinstance(length, tirx.IntImm) and int(length) % width == 0)
    )


def is_contiguous(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    """Tell whether the block's single load of a buffer runs along its last axis with the innermost loop."""
    found = loads_of(sch, block, buffer)
    last = sch.get(block).iter_vars[-1].var
    regions = [r for r in sch.get(block).reads if r.source.same_as(buffer)]
    if len(regions) != 1 or not found or not regions[0].region or buffer.scope() != "global":
        return False
    *outer, inner = found[0].indices
    same = all(_equal(load.indices, found[0].indices) for load in found)
    return (
        same
        and all(not loads(index) for index in found[0].indices)
        and inner.same_as(last)
        and last not in variables(*outer)
        and not _is_guarded(sch, block, buffer)
    )


def _is_guarded(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    """Tell whether a load of a buffer is guarded by a condition, without which it may be out of bounds."""
    conditions = (call for call in nodes_of(sch.get(block).body, tvm.ir.Call) if is_condition(call))
    return any(load.source.same_as(buffer) for call in conditions for load in loads(call))


def _equal(left: Any, right: Any) -> bool:
    return all(a.same_as(b) or str(a) == str(b) for a, b in zip(left, right, strict=True))


def attempt(sch: s_tir.Schedule, transform: Transform, block: Any, errors: Errors = Exception) -> bool:
    """Apply a transformation to a block; return False, with the schedule unchanged, if a step raises ``errors``."""
    name = sch.get(block).name_hint
    trial = sch.copy()
    try:
        transform(trial, trial.get_sblock(name, func_name="main"))
    except errors:
        return False
    transform(sch, block)
    return True


def inline(sch: s_tir.Schedule, wanted: Callable[[s_tir.Schedule, Any], bool]) -> None:
    """Inline the ``wanted`` spatial blocks into all their consumers, up to MAX_NODES."""
    for block in blocks(sch):
        if not is_spatial(sch, block) or not sch.get_consumers(block) or not wanted(sch, block):
            continue
        if _nodes_inlined(sch, block) <= MAX_NODES:
            with contextlib.suppress(ScheduleError):  # it writes a parameter, or several elements per iteration
                sch.compute_inline(block)


def unroll(sch: s_tir.Schedule, loops: Iterable[Any]) -> None:
    """Unroll loops."""
    for loop in loops:
        sch.unroll(loop)


def _nodes_inlined(sch: s_tir.Schedule, block: Any) -> int:
    """Return the size of the largest consumer of a block after inlining the block."""
    own = len(nodes_of(sch.get(block).body, tvm.ir.Expr))
    buffer = sch.get(block).writes[0].source
    sizes = []
    for consumer in sch.get_consumers(block):
        body = sch.get(consumer).body
        uses = sum(1 for load in loads(body) if load.source.same_as(buffer))
        sizes.append(len(nodes_of(body, tvm.ir.Expr)) + uses * own)
    return max(sizes)

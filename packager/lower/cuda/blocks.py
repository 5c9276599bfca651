"""Queries on blocks, and inlining, for the CUDA schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm_ffi import structural_walk

from packager.graph.identity import IdentitySet, position

# The widest load or store of a thread, in bytes.
VECTOR_BYTES = 16
# Bytes of one operand that a thread handles at once if operands differ in element size.
MAX_WIDE_BYTES = 32
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


def read_index(sch: s_tir.Schedule, block: Any, buffer: Any) -> int:
    """Return the index of a buffer among those that a block reads."""
    return position((region.source for region in sch.get(block).reads), buffer)


def itemsize(buffer: Any) -> int:
    """Return the bytes of an element; 4 for bool: bool loads are not vectorized, so they must not limit the others."""
    if buffer.dtype == "bool":
        return 4
    return (int(tvm.runtime.DataType(buffer.dtype).bits) + 7) // 8


def variables(*exprs: Any) -> IdentitySet:
    """Return the variables in expressions."""
    found = IdentitySet()
    for expr in exprs:
        structural_walk(expr, [(tirx.Var, found.add)])
    return found


def loads(node: Any) -> list[Any]:
    """Return every load in an expression or statement."""
    found: list[Any] = []
    structural_walk(node, [(tvm.ir.TensorLoad, found.append)])
    return found


def loads_of(sch: s_tir.Schedule, block: Any, buffer: Any) -> list[Any]:
    """Return every load of a buffer in a block."""
    return [load for load in loads(sch.get(block).body) if load.source.same_as(buffer)]


def is_condition(expr: Any) -> bool:
    """Tell whether an expression is a select or if-then-else."""
    return isinstance(expr, tvm.ir.Call) and str(getattr(expr.op, "name", "")).endswith(".if_then_else")


def is_conditional(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether loads of a block are guarded by conditions, without which they may be out of bounds."""
    found: list[Any] = []
    structural_walk(
        sch.get(block).body, [(tvm.ir.Call, lambda call: found.append(call) if is_condition(call) else None)]
    )
    return bool(found)


def is_movement(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block only moves or pads values."""
    value: Any = getattr(sch.get(block).body, "value", None)
    if is_condition(value):
        return all(isinstance(v, (tvm.ir.TensorLoad, tirx.FloatImm, tirx.IntImm)) for v in value.args[1:])
    if isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tvm.ir.TensorLoad)


def attempt(sch: s_tir.Schedule, transform: Callable[[s_tir.Schedule, Any], None], block: Any) -> bool:
    """Apply a transformation to a block; return False, with the schedule unchanged, if a step does not apply."""
    name = sch.get(block).name_hint
    trial = sch.copy()
    try:
        transform(trial, trial.get_sblock(name, func_name="main"))
    except Exception:  # TVM's primitives raise errors of many types
        return False
    transform(sch, block)
    return True


def inline(sch: s_tir.Schedule, wanted: Callable[[s_tir.Schedule, Any], bool]) -> None:
    """Inline the ``wanted`` spatial blocks into all their consumers, up to MAX_NODES."""
    for block in blocks(sch):
        if not is_spatial(sch, block) or not sch.get_consumers(block) or not wanted(sch, block):
            continue
        if _nodes_inlined(sch, block) <= MAX_NODES:
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue  # it writes a parameter, or more than one element per iteration


def inline_backwards(sch: s_tir.Schedule, producer: Any) -> None:
    """Inline elementwise consumers into ``producer``, a copy that ends a computation."""
    while consumers := list(sch.get_consumers(producer)):
        if len(consumers) != 1:
            return
        try:
            sch.reverse_compute_inline(consumers[0])
        except ScheduleError:
            return


def _nodes_inlined(sch: s_tir.Schedule, block: Any) -> int:
    """Return the size of the largest consumer of a block after inlining the block."""
    own = _nodes(sch.get(block).body)
    buffer = sch.get(block).writes[0].source
    sizes = []
    for consumer in sch.get_consumers(block):
        body = sch.get(consumer).body
        uses = sum(1 for load in loads(body) if load.source.same_as(buffer))
        sizes.append(_nodes(body) + uses * own)
    return max(sizes)


def _nodes(node: Any) -> int:
    count = 0

    def visit(_expr: Any) -> None:
        nonlocal count
        count += 1

    structural_walk(node, [(tvm.ir.Expr, visit)])
    return count

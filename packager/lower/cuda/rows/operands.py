"""Loads the operands of row reductions into registers."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from packager.lower.blocks import is_parameter, is_spatial, loads, loads_of, read_index
from packager.lower.cuda.rows.parts import loads_part


def hold_operands(sch: s_tir.Schedule, full: list[Any]) -> list[Any]:
    """Load each parameter with a value per row element into registers; return the loading blocks."""
    held = []
    for parameter in sch.mod["main"].params:
        users = [block for block in full if reads_row(sch, block, parameter) and not loads_part(sch, block)]
        if users:
            held.append(sch.cache_read(users[0], read_index(sch, users[0], parameter), "local", users))
    return held


def reads_row(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    """Whether a block reads rows of a buffer, each element at its own place.

    Rows that data choose are not among them: TVM would hold all rows that may be chosen.
    """
    last = sch.get(block).iter_vars[-1].var
    found = loads_of(sch, block, buffer)
    return bool(found) and all(_is_own(load, last) and not any(map(loads, load.indices)) for load in found)


def looks_up_row(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether a block copies rows of a parameter that data choose, as embeddings do."""
    body, iters = sch.get(block).body, sch.get(block).iter_vars
    if not is_spatial(sch, block) or not iters or not isinstance(body, tirx.BufferStore):
        return False
    load = body.value
    return (
        isinstance(load, TensorLoad)
        and is_parameter(sch, load.source)
        and _is_own(load, iters[-1].var)
        and any(map(loads, load.indices))
    )


def _is_own(load: Any, last: Any) -> bool:
    return bool(load.indices) and load.indices[-1].same_as(last)

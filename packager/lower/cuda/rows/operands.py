"""Loads the operands of row reductions into registers."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from packager.lower.blocks import loads_of, read_index
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
    """Whether a block reads rows of a buffer, each element at its own place."""
    last = sch.get(block).iter_vars[-1].var
    found = loads_of(sch, block, buffer)
    return bool(found) and all(load.indices and load.indices[-1].same_as(last) for load in found)

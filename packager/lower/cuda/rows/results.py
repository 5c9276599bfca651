"""Writes rows that are results, and that a reduction reads as well, from the registers that hold them."""

from __future__ import annotations

from tvm import s_tir

from packager.lower.blocks import blocks, is_parameter


def store_apart(sch: s_tir.Schedule) -> None:
    """Give each block that writes a parameter, which others read, a copy for these; another block stores it."""
    for block in blocks(sch):
        (region, *_) = sch.get(block).writes
        readers = list(sch.get_consumers(block))
        if readers and is_parameter(sch, region.source):
            sch.cache_write(block, 0, "global", readers)

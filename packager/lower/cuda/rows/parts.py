"""Finds blocks that load parts of longer rows: queries of a product of queries, keys and values, or single heads."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer

from packager.graph.identity import IdentitySet
from packager.lower.blocks import extents, is_parameter, is_spatial, variables


def loads_part(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether a block copies neighboring elements of a parameter's rows, which are longer than those that it writes.

    Inlined, it would make the parameter an operand of other rows than those that are reduced.
    """
    body, iters = sch.get(block).body, sch.get(block).iter_vars
    if not is_spatial(sch, block) or not isinstance(body, tirx.BufferStore) or not isinstance(body.value, TensorLoad):
        return False
    source, indices, last = body.value.source, list(body.value.indices), iters[-1]
    if not indices or not is_parameter(sch, source):
        return False
    sizes = (source.shape[-1], last.dom.extent)
    if not all(isinstance(extent, tirx.IntImm) for extent in sizes) or int(sizes[0]) <= int(sizes[1]):
        return False
    others = [*indices[:-1], Analyzer().simplify(indices[-1] - last.var)]
    return not variables(*others) & IdentitySet([last.var])


def loads_vector(sch: s_tir.Schedule, block: Any, reduction: Any) -> bool:
    """Whether a block loads such a part for several of the rows that are reduced, as a shift or a scale of all."""
    sizes, rows = extents(sch, sch.get_loops(block)), extents(sch, sch.get_loops(reduction))
    return len(sizes) < len(rows) and sizes[-1:] == rows[-1:] and loads_part(sch, block)

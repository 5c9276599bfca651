"""Has a block with a loop in it, such as a scatter, compute what an elementwise function makes of its elements."""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import loads
from packager.lower.tir_loops import whole_region


def fold_epilogue(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of two blocks, the second elementwise, as one block that stores what the second would.

    Raises ScheduleError if the second does more than to read each element of the first's once, at its own place.
    """
    root = primfunc.body.block
    nests = list(root.body.seq) if isinstance(root.body, st.SeqStmt) else []
    if len(nests) != 2 or len(root.alloc_buffers) != 1:
        raise ScheduleError("not two blocks")
    (into,), (first, second) = root.alloc_buffers, (nodes_of(nest, s_tir.SBlock)[-1] for nest in nests)
    end = second.body
    own = [var.var for var in second.iter_vars]
    if not isinstance(end, st.BufferStore) or not _are_own(end.indices, own):
        raise ScheduleError("the second block stores elsewhere")
    if not all(_are_own(load.indices, own) for load in nodes_of(end.value, ir.TensorLoad) if load.source.same_as(into)):
        raise ScheduleError("the second block reads elsewhere")

    stores = [store for store in nodes_of(first.body, st.BufferStore) if store.buffer.same_as(into)]
    if len(stores) != 1:
        raise ScheduleError("the first block stores at several places")
    (store,) = stores
    places = IdentityMap(zip(own, store.indices, strict=True))
    value = structural_map(end.value, (ir.TensorLoad, lambda load: store.value if load.source.same_as(into) else load))
    value = structural_map(value, (tirx.Var, lambda variable: places.get(variable, variable)))
    last = st.BufferStore(end.buffer, value, store.indices)
    body = structural_map(first.body, (st.BufferStore, lambda each: last if each.buffer.same_as(into) else each))
    writes = [tirx.BufferRegion(end.buffer, region.region) for region in first.writes]
    own_buffers = first.alloc_buffers
    whole = with_whole_reads(
        s_tir.SBlock(first.iter_vars, [], writes, first.name_hint, body, alloc_buffers=own_buffers)
    )
    nest = structural_map(
        nests[0], (s_tir.SBlock, lambda block: whole if block.name_hint == first.name_hint else block)
    )
    block = s_tir.SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, nest)
    return primfunc.with_body(s_tir.SBlockRealize([], True, block))


def with_whole_reads(block: Any) -> Any:
    """Declare that all of each tensor is read: TVM states regions by the variables in the block."""
    tensors = IdentitySet(load.source for load in loads(block.body) if load.source.scope() == "global")
    reads = [whole_region(tensor) for tensor in tensors]
    return s_tir.SBlock(
        block.iter_vars, reads, block.writes, block.name_hint, block.body, alloc_buffers=block.alloc_buffers
    )


def _are_own(indices: Any, variables: list[Any]) -> bool:
    """Whether indices are these variables, in order."""
    return len(indices) == len(variables) and all(a.same_as(b) for a, b in zip(indices, variables, strict=True))

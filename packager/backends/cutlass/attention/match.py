"""Match attention, with the GEMMs that compute q, k and v from one tensor where they can become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from packager.graph.attention import match as attention
from packager.graph.attention.heads import Heads
from packager.graph.attention.match import find_core
from packager.graph.dataflow import Dataflow, in_order, only_last_is_read, operator_of, shape_of
from packager.graph.identity import IdentitySet
from packager.graph.products.epilogues import Chain, chains


@dataclass(frozen=True)
class Projection:
    """``scale * data weight + bias`` for q, k and v each: ``data`` [rows, depth], ``weights`` [depth, columns].

    ``rows`` are extents whose product is the number of rows. ``biases`` has one for each of the weights, or none.
    """

    data: Any
    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    rows: tuple[Any, ...]
    depth: int
    columns: int
    scale: float

    @property
    def dtype(self) -> str:
        """The element type of all tensors."""
        return str(self.data.ty.dtype)


@dataclass(frozen=True)
class Attention(attention.Attention):
    """``projection`` is the GEMM that computes q, k and v, if the match includes it."""

    projection: Projection | None = None


def find_attention(flow: Dataflow, softmax: Any) -> Iterator[Attention]:
    """Yield the attention around a softmax, with the GEMMs of its operands if they can be included, then without."""
    core = find_core(flow, softmax, widely=True)
    if core is None or core.keep is not None:
        return
    found = Attention(**vars(core))
    projections = find_projections(flow, (found.q, found.k, found.v))
    if projections is not None:
        made = [variable for chain in projections for variable in chain.variables]
        variables = in_order(flow, [*found.variables, *made])
        if only_last_is_read(flow, variables):
            yield replace(found, variables=variables, projection=read_projection(flow, projections))
    yield found


def read_projection(flow: Dataflow, chains: Sequence[Chain]) -> Projection:
    """Return the GEMMs of q, k and v as one."""
    first = chains[0]
    data = flow.value(first.anchor).args[0]
    weights = tuple(flow.value(chain.anchor).args[1] for chain in chains)
    biases = tuple(chain.bias for chain in chains if chain.bias is not None)
    rows = (shape_of(data) or ())[:-1]
    depth, columns = shape_of(weights[0]) or (0, 0)
    return Projection(data, weights, biases, rows, depth, columns, first.scale)


def find_projections(flow: Dataflow, operands: Sequence[Heads]) -> tuple[Chain, ...] | None:
    """Return the GEMMs of all operands if they read the same tensor, with matrices of the same shape."""
    found = [chain for heads in operands if (chain := _projection(flow, heads)) is not None]
    if len(found) != len(operands):
        return None
    data = IdentitySet(flow.value(chain.anchor).args[0] for chain in found)
    kinds = {(shape_of(flow.value(chain.anchor).args[1]), chain.bias is None, chain.scale) for chain in found}
    anchors = IdentitySet(chain.anchor for chain in found)
    return tuple(found) if (len(data), len(kinds), len(anchors)) == (1, 1, len(operands)) else None


def _projection(flow: Dataflow, heads: Heads) -> Chain | None:
    """Return the GEMM with a constant matrix, and its bias, that computes an operand."""
    anchor = heads.source
    for _ in range(6):
        call = flow.value(anchor)
        if operator_of(call) == "matmul":
            break
        tensors = [a for a in getattr(call, "args", ()) if isinstance(a, relax.Var) and flow.value(a) is not None]
        if operator_of(call) not in ("add", "astype", "reshape", "multiply") or len(tensors) != 1:
            return None
        (anchor,) = tensors
    else:
        return None
    matrix = call.args[1]
    whole = heads.offset == 0 and isinstance(extents := shape_of(matrix), tuple) and heads.row == extents[-1]
    if not whole or len(shape_of(matrix) or ()) != 2 or not flow.is_constant(matrix):
        return None
    for chain in chains(flow, anchor):
        if chain.result.same_as(heads.source) and chain.residual is None and not chain.activation:
            return chain
    return None

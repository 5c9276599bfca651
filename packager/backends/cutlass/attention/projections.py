"""The products that make q, k and v: of one tensor with a matrix of the model each, so that one product can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.backends.cutlass.core.element_types import shape_of
from packager.backends.cutlass.core.epilogues import Chain, chains
from packager.graph.attention.heads import Heads
from packager.graph.dataflow import Dataflow, operator_of
from packager.graph.identity import IdentitySet


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
        """The element type of all."""
        return str(self.data.ty.dtype)


def read_projection(flow: Dataflow, chains: Sequence[Chain]) -> Projection:
    """Return what the products that make q, k and v compute together."""
    first = chains[0]
    data = flow.value(first.anchor).args[0]
    weights = tuple(flow.value(chain.anchor).args[1] for chain in chains)
    biases = tuple(chain.bias for chain in chains if chain.bias is not None)
    rows = (shape_of(data) or ())[:-1]
    depth, columns = shape_of(weights[0]) or (0, 0)
    return Projection(data, weights, biases, rows, depth, columns, first.scale)


def find_projections(flow: Dataflow, operands: Sequence[Heads]) -> tuple[Chain, ...] | None:
    """Return the products that operands are if all are of the same tensor, with matrices of the same shape."""
    found = [chain for heads in operands if (chain := _projection(flow, heads)) is not None]
    if len(found) != len(operands):
        return None
    data = IdentitySet(flow.value(chain.anchor).args[0] for chain in found)
    forms = {(shape_of(flow.value(chain.anchor).args[1]), chain.bias is None, chain.scale) for chain in found}
    anchors = IdentitySet(chain.anchor for chain in found)
    return tuple(found) if (len(data), len(forms), len(anchors)) == (1, 1, len(operands)) else None


def _projection(flow: Dataflow, heads: Heads) -> Chain | None:
    """Return the product of a tensor with a constant matrix, and its bias, that an operand is."""
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

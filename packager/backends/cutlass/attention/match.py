"""Attention as the backend takes it: with the products that make q, k and v, where one product can serve for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from packager.backends.cutlass.attention.projections import Projection, find_projections, read_projection
from packager.graph.attention import match as attention
from packager.graph.attention.match import find_core
from packager.graph.dataflow import Dataflow, in_order, only_last_is_read


@dataclass(frozen=True)
class Attention(attention.Attention):
    """``projection`` is the product that makes q, k and v, where it is covered too."""

    projection: Projection | None = None


def find_attention(flow: Dataflow, softmax: Any) -> Iterator[Attention]:
    """Yield the attention around a softmax, with the products before it if they can be covered, and without them."""
    core = find_core(flow, softmax)
    if core is None:
        return
    found = Attention(**vars(core))
    if (whole := _with_projections(flow, found)) is not None:
        yield whole
    yield found


def _with_projections(flow: Dataflow, found: Attention) -> Attention | None:
    """Return the attention with the products that make its operands, None where it cannot cover these."""
    chains = find_projections(flow, (found.q, found.k, found.v))
    if chains is None:
        return None
    made = [variable for chain in chains for variable in chain.variables]
    variables = in_order(flow, [*found.variables, *made])
    if not only_last_is_read(flow, variables):
        return None
    return replace(found, variables=variables, projection=read_projection(flow, chains))

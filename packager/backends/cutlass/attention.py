"""softmax(scale * q k^T + mask) v, as exporters write it: the heads of one tensor taken apart, and put together again.

``attention_core`` follows the graph from a softmax to both products, ``attention_heads`` from these to where q, k and v
lie, ``attention_masks`` says what a mask does, and ``attention_projections`` finds the products that make q, k and v.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packager.backends.cutlass.attention_core import Scores, find_result, find_scores, find_weighted
from packager.backends.cutlass.attention_heads import Heads, Operand, follow_views, locate
from packager.backends.cutlass.attention_masks import read_mask
from packager.backends.cutlass.attention_projections import find_projections
from packager.backends.cutlass.chains import Chain
from packager.backends.cutlass.graph import in_order, only_last_is_read, same, shape_of
from packager.dataflow import Dataflow


@dataclass(frozen=True)
class Attention:
    """``variables`` are those whose bindings it covers, in order; ``result`` the last.

    ``projections`` are the products that make q, k and v, where they are covered too. ``mask`` is what is added to the
    scores, None if nothing is or it is ``causal``.
    """

    variables: tuple[Any, ...]
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    batch: Any
    heads: int
    queries: Any
    keys: Any
    depth: int
    value_depth: int
    scale: float
    mask: Any = None
    causal: bool = False
    projections: tuple[Chain, ...] = ()

    @property
    def result(self) -> Any:
        """The variable that holds the result."""
        return self.variables[-1]


def find_attention(flow: Dataflow, softmax: Any) -> Iterator[Attention]:
    """Yield the attention around a softmax, with the products before it if they can be covered, and without them."""
    extents = shape_of(softmax)
    if not extents or int(flow.value(softmax).attrs.axis) % len(extents) != len(extents) - 1:
        return
    scores = find_scores(flow, softmax)
    weighted = find_weighted(flow, softmax)
    if scores is None or weighted is None:
        return
    product, weights = weighted
    queries, keys = flow.value(scores.product).args
    q, keys_first, v = (follow_views(flow, variable) for variable in (queries, keys, flow.value(product).args[1]))
    if q is None or keys_first is None or v is None:
        return
    rows_first, after = find_result(flow, product, v.shape)
    core = [softmax, product, scores.product, *scores.covered, *weights, *after]
    found = _attention(flow, core, (q, keys_first.transposed(), v), rows_first, scores)
    if found is None:
        return
    if (whole := _with_projections(flow, found)) is not None:
        yield whole
    yield found


def _attention(
    flow: Dataflow, core: Sequence[Any], operands: Sequence[Operand], rows_first: bool, scores: Scores
) -> Attention | None:
    """Return the attention of these operands if they fit each other; it covers ``core`` and the operands' views."""
    q, k, v = operands
    batch, heads, queries, depth = q.shape
    keys, value_depth = k.shape[2], v.shape[3]
    static = all(isinstance(extent, int) for extent in (heads, depth, value_depth))
    fits = same(k.shape[:2], q.shape[:2]) and same(v.shape[:2], q.shape[:2]) and same(k.shape[3], depth)
    if not static or not fits or not same(v.shape[2], keys):
        return None
    places = [place for operand in operands if (place := locate(flow, operand)) is not None]
    variables = in_order(flow, [*core, *(view for operand in operands for view in operand.views)])
    if len(places) != len(operands) or not only_last_is_read(flow, variables):
        return None
    at_q, at_k, at_v = places
    mask, causal = read_mask(flow, scores.mask, queries, keys)
    row, head = (heads * value_depth, value_depth) if rows_first else (value_depth, 0)
    return Attention(
        variables,
        at_q,
        at_k,
        at_v,
        Heads(variables[-1], 0, row, head),
        batch,
        heads,
        queries,
        keys,
        depth,
        value_depth,
        scores.scale,
        mask,
        causal,
    )


def _with_projections(flow: Dataflow, found: Attention) -> Attention | None:
    """Return the attention with the products that make its operands, None where it cannot cover these."""
    projections = find_projections(flow, (found.q, found.k, found.v))
    if projections is None:
        return None
    made = [variable for chain in projections for variable in chain.variables]
    variables = in_order(flow, [*found.variables, *made])
    if not only_last_is_read(flow, variables):
        return None
    return replace(found, variables=variables, projections=projections)

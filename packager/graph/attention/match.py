"""Matches attention, softmax(scale * q k^T + mask) v, as exporters write it, with split and merged heads.

``core`` traces from a softmax to both matmuls, ``heads`` from these to q, k and v in their sources, ``result`` to what
reads the result, and ``masks`` classifies the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from packager.graph.attention.core import Scores, find_scores, find_weighted
from packager.graph.attention.heads import Heads, Operand, follow_views, locate
from packager.graph.attention.masks import read_mask
from packager.graph.attention.result import find_result
from packager.graph.attention.sinks import constant_sinks
from packager.graph.dataflow import Dataflow, in_order, only_last_is_read, same, shape_of
from packager.graph.identity import IdentitySet


@dataclass(frozen=True)
class Attention:
    """A match: ``variables`` are the covered bindings in order, the last is ``result``.

    ``mask`` is added to the scores; None if there is none or it is ``causal``. Scores are replaced by ``fill`` where
    ``keep`` is false (true if ``inverted``), before the mask is added. With a ``softcap``, scores become that of its
    tanh(scores / softcap) before both. With ``safe`` a row without a finite score is zero, not NaN. ``sinks`` is the
    constant of ``sinks_of_heads``, or None.
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
    keep: Any = None
    inverted: bool = False
    fill: float = 0.0
    softcap: float = 0.0
    safe: bool = False
    sinks: Any = None

    @property
    def result(self) -> Any:
        """The variable that holds the result."""
        return self.variables[-1]


def find_core(flow: Dataflow, softmax: Any, *, widely: bool = False, repeated: bool | None = None) -> Attention | None:
    """Return the attention around a softmax, or None.

    ``widely``: operands may be scaled, and their heads precede rows; a boolean mask may select scores, and NaN may be
    replaced by zero. ``repeated``, by default as ``widely``: a head of keys and values may be that of several queries'.
    """
    repeated = widely if repeated is None else repeated
    extents = shape_of(softmax)
    if not extents or int(flow.value(softmax).attrs.axis) % len(extents) != len(extents) - 1:
        return None
    scores = find_scores(flow, softmax, widely=widely)
    weighted = find_weighted(flow, softmax, widely=widely, sinks=scores is not None and scores.sinks is not None)
    if scores is None or weighted is None:
        return None
    queries, keys = flow.value(scores.product).args
    q, keys_first = (follow_views(flow, variable, widely=widely, repeated=repeated) for variable in (queries, keys))
    v = follow_views(flow, flow.value(weighted.product).args[1], widely=widely, repeated=repeated)
    if q is None or keys_first is None or v is None or v.scale != 1.0:
        return None
    rows_first, after = find_result(flow, weighted.product, (*q.shape[:3], v.shape[3]))
    core = [softmax, weighted.product, scores.product, *scores.covered, *weighted.covered, *after]
    inner = IdentitySet([*core, *q.views, *keys_first.views, *v.views])
    operands = [q, keys_first.transposed(), v]
    if widely:
        operands = [operand.private(flow, inner) for operand in operands]
    places = [locate(flow, operand, widely=widely) for operand in operands]
    if widely and None in places:
        both = [_located(flow, operand) for operand in operands]
        operands, places = [operand for operand, _ in both], [place for _, place in both]
        if any(operand.source in IdentitySet(other.views) for operand in operands for other in operands):
            return None  # what one reads from memory another one looks through
    found = _attention(flow, core, operands, places, rows_first, scores, repeated)
    if found is not None and scores.sinks is not None:
        found = _with_sinks(flow, found, scores.sinks)
    return found and replace(found, safe=weighted.safe)


def _with_sinks(flow: Dataflow, found: Attention, sinks: Any) -> Attention | None:
    """Return an attention with sinks if they are constant, and the views of them are read by it alone."""
    constant = constant_sinks(flow, sinks, found.heads)
    if constant is None:
        return None
    source, views = constant
    variables = in_order(flow, [*found.variables, *views])
    return replace(found, variables=variables, sinks=source) if only_last_is_read(flow, variables) else None


def _located(flow: Dataflow, operand: Operand) -> tuple[Operand, Heads | None]:
    """Return an operand with its layout in its source, or in the first view of it that has one, widely."""
    for at in range(-1, len(operand.views)):
        found = operand if at < 0 else operand.behind(flow, at)
        if shape_of(found.source) and (place := locate(flow, found, widely=True)) is not None:
            return found, place
    return operand, None


def _attention(
    flow: Dataflow,
    core: Sequence[Any],
    operands: Sequence[Operand],
    places: Sequence[Heads | None],
    rows_first: bool,
    scores: Scores,
    repeated: bool,
) -> Attention | None:
    """Return the attention of operands at ``places`` if shapes match; it covers ``core`` and the operands' views."""
    q, k, v = operands
    batch, heads, queries, depth = q.shape
    keys, value_depth = k.shape[2], v.shape[3]
    static = all(isinstance(extent, int) for extent in (heads, depth, value_depth))
    shared = repeated and heads != 1 and k.shape[1] == v.shape[1] == 1  # one head of keys and values for all
    fits = all(same(o.shape[0], batch) and (shared or same(o.shape[1], heads)) for o in (k, v))
    if not static or not fits or not same(k.shape[3], depth) or not same(v.shape[2], keys):
        return None
    variables = in_order(flow, [*core, *(view for operand in operands for view in operand.views)])
    at_q, at_k, at_v = places
    if at_q is None or at_k is None or at_v is None or not only_last_is_read(flow, variables):
        return None
    if at_q.group != 1 or at_k.group != at_v.group:
        return None
    if shared:
        at_k, at_v = (replace(place, group=heads) for place in (at_k, at_v))
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
        scores.scale * q.scale * k.scale,
        mask,
        causal,
        scores.keep,
        scores.inverted,
        scores.fill,
        scores.softcap,
    )

"""Problems: groups of operators that a pattern matches and a template renders as one operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.backends.base import Found, Match
from packager.graph.attention.match import Attention, find_core
from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of

# Of means of neighbors: the maximum length of a row, which is on the stack twice, and of a window.
MOST_ELEMENTS = 1536
MOST_NEIGHBORS = 16
FLOATS = ("float32", "float16")
DEEPEST = 256


@dataclass(frozen=True)
class LayerNorm:
    """``(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)`` over the last axis of ``data``.

    ``variables`` are those whose bindings it covers, in order, the result last.
    """

    variables: tuple[Any, ...]
    data: Any
    epsilon: float


@dataclass(frozen=True)
class SumOfTensors:
    """The sum of ``terms``, all of one shape. ``variables`` are those whose bindings it covers, the result last."""

    variables: tuple[Any, ...]
    terms: tuple[Any, ...]


Problem = Attention | LayerNorm | SumOfTensors


def read_layer_norm(match: Match) -> LayerNorm:
    """Return the problem of a decomposed layer norm."""
    calls = {operator_of(call): call for call in match.calls}  # both means are of the same axis
    epsilon = scalar_of(calls["add"].args[1])
    assert epsilon is not None  # the predicate has checked it
    return LayerNorm(match.variables, calls["subtract"].args[0], epsilon)


def read_sum(match: Match) -> SumOfTensors:
    """Return the problem of stacked tensors that are summed, with broadcasts as terms."""
    stack, _ = match.calls[-2:]
    return SumOfTensors(match.variables[-2:], tuple(stack.args[0].fields))


def find_attention(flow: Dataflow, softmax: Any) -> Iterator[Found]:
    """Yield the attention around a softmax, if the template supports it."""
    found = find_core(flow, softmax, widely=True)
    if found is not None and _takes(found):
        yield Found(found.variables, found)


def _takes(attention: Attention) -> bool:
    """Whether the template supports the types and shapes of an attention."""
    sources = [heads.source for heads in (attention.q, attention.k, attention.v)]
    types = {str(tensor.ty.dtype) for tensor in (*sources, attention.result)}
    deep = max(attention.depth, attention.value_depth) > DEEPEST
    if len(types) != 1 or not types <= set(FLOATS) or deep or any(shape_of(source) is None for source in sources):
        return False
    if attention.sinks is not None and str(attention.sinks.ty.dtype) not in FLOATS:
        return False
    masks = [(attention.mask, FLOATS), (attention.keep, ("bool",))]
    return all(mask is None or _takes_mask(attention, mask, dtypes) for mask, dtypes in masks)


def _takes_mask(attention: Attention, mask: Any, dtypes: Sequence[str]) -> bool:
    """Whether a mask is a tensor whose axes are those of the scores, or 1."""
    extents = shape_of(mask)
    if not isinstance(mask, relax.Var) or extents is None or len(extents) > 4 or str(mask.ty.dtype) not in dtypes:
        return False
    whole = (attention.batch, attention.heads, attention.queries, attention.keys)[4 - len(extents) :]
    return all(same(mine, 1) or same(mine, extent) for mine, extent in zip(extents, whole, strict=True))

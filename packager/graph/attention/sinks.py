"""Finds sinks: a score of each head for a key whose value is zero, so that weights add up to less than 1.

Models have it as a column behind the scores, which is dropped behind the softmax (OpenAI 2025, "gpt-oss-120b and
gpt-oss-20b Model Card"; Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from packager.graph.dataflow import Dataflow, operator_of, same, shape_of

VIEWS = ("astype", "broadcast_to", "expand_dims", "reshape")


def scores_and_sinks(flow: Dataflow, variable: Any) -> tuple[Any, Any] | None:
    """Return scores [..., keys] and sinks [..., 1] of which ``variable`` is the concatenation, or None."""
    call, shape = flow.call(variable, "concat"), shape_of(variable)
    if call is None or not shape or len(call.args[0].fields) != 2:
        return None
    scores, sinks = call.args[0].fields
    axis, behind = call.attrs.axis, shape_of(sinks)
    last = axis is not None and int(axis) % len(shape) == len(shape) - 1
    return (scores, sinks) if last and behind and same(behind[-1], 1) else None


def are_scores(flow: Dataflow, variable: Any) -> bool:
    """Whether only softmaxes read a variable, with sinks behind it or without."""
    readers = flow.readers(variable)
    if flow.is_result(variable):
        return False
    return all(
        flow.call(reader, "nn.softmax") is not None
        or (
            (both := scores_and_sinks(flow, reader)) is not None
            and both[0].same_as(variable)
            and are_scores(flow, reader)
        )
        for reader in readers
    )


def drops_sinks(flow: Dataflow, variable: Any) -> bool:
    """Whether a variable is a slice of another, without the last column."""
    call, shape = flow.call(variable, "strided_slice"), shape_of(variable)
    whole = shape_of(call.args[0]) if call is not None else None
    if not shape or not whole or not same(shape[:-1], whole[:-1]):
        return False
    bounds = [argument.fields for argument in call.args[1:] if isinstance(argument, relax.Tuple)]
    if len(bounds) < 3:
        return False
    _, begins, _, *strides = bounds
    from_the_first = all(same(begin, 0) for begin in begins) and all(same(s, 1) for each in strides for s in each)
    return from_the_first and same(shape[-1] + 1, whole[-1])


def constant_sinks(flow: Dataflow, variable: Any, heads: int) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the constant that holds the sinks of heads, and the views from it; None if they are computed, or differ
    among queries."""
    views: list[Any] = []
    while operator_of(flow.value(variable)) in VIEWS:
        views.append(variable)
        (variable, *_) = flow.value(variable).args
    array = flow.array(variable) if flow.value(variable) is None else None
    return (variable, tuple(views)) if array is not None and _are_of_heads(array, heads) else None


def _are_of_heads(array: NDArray[Any], heads: int) -> bool:
    """Whether sinks [batch, heads, queries, 1] are the same for all queries of a head."""
    fits = array.ndim == 4 and array.shape[1] in (1, heads) and array.shape[3] == 1
    return fits and bool((array == array[:1, :, :1]).all())


def sinks_of_heads(array: NDArray[Any], heads: int) -> NDArray[np.float32]:
    """Return the sinks [heads] of an array [batch or 1, heads or 1, queries or 1, 1]."""
    return np.broadcast_to(array[0, :, 0, 0].astype(np.float32), (heads,)).copy()

"""Which attentions the backend takes, in a model and in a partition's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from packager.backends.base import Found, Search
from packager.graph.attention.match import Attention, find_core
from packager.graph.dataflow import Dataflow, same, shape_of

FLOATS = ("float32", "float16")
DEEPEST = 256
CAUSAL = "ccompiler.attention_causal"
UNMASKED = "ccompiler.attention"
MASKED = "ccompiler.attention_masked"


def make_searches() -> list[Search]:
    """Return what the backend takes: the names say what a mask does, which the model's constants tell."""
    wanted = {CAUSAL: (True, False), UNMASKED: (False, False), MASKED: (False, True)}
    return [Search(name, "nn.softmax", _finder(*form), anchor=True) for name, form in wanted.items()]


def _finder(causal: bool, masked: bool) -> Callable[[Dataflow, Any], Iterator[Found]]:
    def find(flow: Dataflow, softmax: Any) -> Iterator[Found]:
        found = find_core(flow, softmax, widely=True)
        if found is not None and takes(found) and (found.causal, found.mask is not None) == (causal, masked):
            yield Found(found.variables)

    return find


def find_attentions(function: relax.Function, composites: Iterable[str]) -> list[Attention]:
    """Return the attentions in a partition's function; ``composites`` say what their masks do."""
    flow = Dataflow(function)
    found = []
    for variable in flow.variables:
        attention = find_core(flow, variable, widely=True) if flow.call(variable, "nn.softmax") is not None else None
        if attention is not None and takes(attention):
            if {CAUSAL, UNMASKED} & set(composites):  # the mask's value is known to the search alone
                attention = replace(attention, mask=None, causal=CAUSAL in composites)
            found.append(attention)
    return found


def takes(attention: Attention) -> bool:
    """Whether an attention is of types and shapes that the template is for."""
    sources = [heads.source for heads in (attention.q, attention.k, attention.v)]
    types = {str(tensor.ty.dtype) for tensor in (*sources, attention.result)}
    deep = max(attention.depth, attention.value_depth) > DEEPEST
    if len(types) != 1 or not types <= set(FLOATS) or deep or any(shape_of(source) is None for source in sources):
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

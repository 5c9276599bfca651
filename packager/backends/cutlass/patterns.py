"""What the cutlass backend takes, as searches: anchors, and what grows around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packager.backends.base import Search
from packager.backends.cutlass.attention.match import Attention, find_attention
from packager.backends.cutlass.attention.problem import rank_attention
from packager.backends.cutlass.conv.problem import takes_convolution
from packager.backends.cutlass.core.epilogues import chains
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.problem import takes_product
from packager.backends.cutlass.quantized.epilogues import quantized_chains
from packager.backends.cutlass.quantized.problem import takes_quantized
from packager.graph.dataflow import Dataflow

CAUSAL = "cutlass.attention_causal"
UNMASKED = "cutlass.attention"
MASKED = "cutlass.attention_masked"


def make_searches(options: CutlassOptions) -> list[Search]:
    """Return the searches of the groups of operators that a Target takes."""
    operators, searches = options.operators, []
    if "attention" in operators:
        searches += [
            Search(CAUSAL, "nn.softmax", _attention(options, lambda a: a.causal), anchor=True),
            Search(UNMASKED, "nn.softmax", _attention(options, lambda a: not a.causal and a.mask is None), anchor=True),
            Search(MASKED, "nn.softmax", _attention(options, lambda a: a.mask is not None), anchor=True),
        ]
    if "dense" in operators:

        def find(flow: Dataflow, anchor: Any) -> Iterator[Sequence[Any]]:
            for chain in chains(flow, anchor):
                if takes_product(flow, chain, options):
                    yield chain.variables
            yield from _quantized(flow, anchor, options)

        searches.append(Search("cutlass.dense", "matmul", find, anchor=True))
    if "conv2d" in operators:

        def find_convolution(flow: Dataflow, anchor: Any) -> Iterator[Sequence[Any]]:
            for chain in chains(flow, anchor):
                if takes_convolution(flow, chain, options):
                    yield chain.variables
            yield from _quantized(flow, anchor, options)

        searches.append(Search("cutlass.conv2d", "nn.conv2d", find_convolution, anchor=True))
    return searches


def _quantized(flow: Dataflow, anchor: Any, options: CutlassOptions) -> Iterator[Sequence[Any]]:
    for chain in quantized_chains(flow, anchor):
        if takes_quantized(flow, chain, options):
            yield chain.variables


def _attention(
    options: CutlassOptions, wanted: Callable[[Attention], bool]
) -> Callable[[Dataflow, Any], Iterator[Sequence[Any]]]:
    def find(flow: Dataflow, softmax: Any) -> Iterator[Sequence[Any]]:
        for attention in find_attention(flow, softmax):
            if wanted(attention) and rank_attention(attention, options):
                yield attention.variables

    return find

"""What the cutlass backend takes, as searches: anchors, and what grows around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packager.backends.base import Found, Search
from packager.backends.cutlass.attention.match import find_attention
from packager.backends.cutlass.attention.problem import rank_attention, read_attention
from packager.backends.cutlass.conv.problem import read_convolution
from packager.backends.cutlass.core.epilogues import chains
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.problem import read_gemm
from packager.backends.cutlass.quantized.epilogues import quantized_chains
from packager.backends.cutlass.quantized.problem import read_quantized
from packager.graph.dataflow import Dataflow


def make_searches(options: CutlassOptions) -> list[Search]:
    """Return the searches of the groups of operators that a Target takes."""

    def attention(flow: Dataflow, softmax: Any) -> Iterator[Found]:
        for found in find_attention(flow, softmax):
            problem = read_attention(found)
            if problem is not None and rank_attention(problem, options):
                yield Found(found.variables, problem)

    def dense(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for chain in chains(flow, anchor):
            if (problem := read_gemm(flow, chain, options)) is not None:
                yield Found(chain.variables, problem)
        yield from _quantized(flow, anchor, options)

    def conv2d(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for chain in chains(flow, anchor):
            if (problem := read_convolution(flow, chain, options)) is not None:
                yield Found(chain.variables, problem)
        yield from _quantized(flow, anchor, options)

    searches = {
        "attention": Search("cutlass.attention", "nn.softmax", attention, anchor=True),
        "dense": Search("cutlass.dense", "matmul", dense, anchor=True),
        "conv2d": Search("cutlass.conv2d", "nn.conv2d", conv2d, anchor=True),
    }
    return [search for name, search in searches.items() if name in options.operators]


def _quantized(flow: Dataflow, anchor: Any, options: CutlassOptions) -> Iterator[Found]:
    for chain in quantized_chains(flow, anchor):
        if (problem := read_quantized(flow, chain, options)) is not None:
            yield Found(chain.variables, problem)

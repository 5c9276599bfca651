"""The searches of the cutlass backend: anchors with their epilogues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packager.backends.base import Found, Search
from packager.backends.cutlass.attention.match import find_attention
from packager.backends.cutlass.attention.problem import rank_attention, read_attention
from packager.backends.cutlass.conv.problem import read_convolution
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.block_problem import can_norm_blocks, read_block_gemm
from packager.backends.cutlass.gemm.gated import can_norm_gated, read_gated
from packager.backends.cutlass.gemm.grouped import find_grouped
from packager.backends.cutlass.gemm.normed import NormedProblem
from packager.backends.cutlass.gemm.problem import can_norm_gemm, read_gemm
from packager.backends.cutlass.quantized.problem import read_quantized
from packager.backends.cutlass.recurrent.problem import find_recurrent
from packager.graph.block_weights import MATMUL as BLOCK_MATMUL
from packager.graph.dataflow import Dataflow, in_order, operator_of
from packager.graph.products.epilogues import chains
from packager.graph.products.gated import gated_products
from packager.graph.products.grouped import NAME as GROUPED
from packager.graph.products.quantized import quantized_chains
from packager.graph.products.row_norms import find_row_norm
from packager.graph.recurrences.recurrent import NAME as RECURRENT


def make_searches(options: CutlassOptions) -> list[Search]:
    """Return the searches for the groups of operators of a Target."""

    def attention(flow: Dataflow, softmax: Any) -> Iterator[Found]:
        for found in find_attention(flow, softmax):
            problem = read_attention(found)
            if problem is not None and rank_attention(problem, options):
                yield Found(found.variables, problem)

    def normed(
        flow: Dataflow, variables: Sequence[Any], problem: Any, can_norm: Callable[..., bool]
    ) -> Iterator[Found]:
        """Yield a product of few rows with their norm, and without it."""
        norm = find_row_norm(flow, problem.a, variables)
        if norm is not None and can_norm(problem, options):
            yield Found(in_order(flow, (*norm.variables, *variables)), NormedProblem(problem, norm))
        yield Found(tuple(variables), problem)

    def product(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for gated in gated_products(flow, anchor):
            if (gates := read_gated(flow, gated, options)) is not None:
                yield from normed(flow, gated.variables, gates, can_norm_gated)
        is_matmul = operator_of(flow.value(anchor)) == "matmul"
        for chain in chains(flow, anchor):
            if is_matmul and (gemm := read_gemm(flow, chain, options)) is not None:
                yield from normed(flow, chain.variables, gemm, can_norm_gemm)
            elif not is_matmul and (conv := read_convolution(flow, chain, options)) is not None:
                yield Found(chain.variables, conv)
        for scaled in quantized_chains(flow, anchor):
            if (quantized := read_quantized(flow, scaled, options)) is not None:
                yield Found(scaled.variables, quantized)

    def volume(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for chain in chains(flow, anchor):
            if (problem := read_convolution(flow, chain, options)) is not None:
                yield Found(chain.variables, problem)

    def block_product(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for gated in gated_products(flow, anchor):
            if len(gated.products) == 1 and (gates := read_block_gemm(flow, gated.products[0], options, gated)):
                yield from normed(flow, gated.variables, gates, can_norm_blocks)
        for chain in chains(flow, anchor):
            if (problem := read_block_gemm(flow, chain, options)) is not None:
                yield from normed(flow, chain.variables, problem, can_norm_blocks)

    def grouped(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for problem in find_grouped(flow, anchor, options):
            yield Found((anchor,), problem)

    def recurrent(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        for problem in find_recurrent(flow, anchor, options):
            yield Found((anchor,), problem)

    blocks = BLOCK_MATMUL.removeprefix("relax.")
    searches = [
        ("attention", Search("cutlass.attention", "nn.softmax", attention, anchor=True)),
        ("dense", Search("cutlass.dense", "matmul", product, anchor=True)),
        ("dense", Search("cutlass.block_matmul", blocks, block_product, anchor=True)),
        ("dense", Search("cutlass.grouped_matmul", GROUPED.removeprefix("relax."), grouped, anchor=True)),
        ("conv2d", Search("cutlass.conv2d", "nn.conv2d", product, anchor=True)),
        ("recurrent", Search("cutlass.recurrent", RECURRENT.removeprefix("relax."), recurrent, anchor=True)),
        ("conv2d", Search("cutlass.conv3d", "nn.conv3d", volume, anchor=True)),
    ]
    return [search for name, search in searches if name in options.operators]

"""The searches of the cublas backend: anchors with their epilogues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packager.backends.base import Found, Search
from packager.backends.cublas.options import CublasOptions
from packager.backends.cublas.problem import read_dense, read_pointwise
from packager.backends.cublas.quantized import read_quantized
from packager.graph.dataflow import Dataflow, operator_of
from packager.graph.products.epilogues import chains
from packager.graph.products.quantized import quantized_chains


def make_searches(options: CublasOptions) -> list[Search]:
    """Return the searches for the groups of operators of a Target."""

    def product(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        read = read_dense if operator_of(flow.value(anchor)) == "matmul" else read_pointwise
        for chain in chains(flow, anchor):
            if (problem := read(flow, chain, options)) is not None:
                yield Found(chain.variables, problem)
        for scaled in quantized_chains(flow, anchor):
            if (quantized := read_quantized(flow, scaled, options)) is not None:
                yield Found(scaled.variables, quantized)

    searches = []
    narrow = {"int8", "float8", "float8_columns"} & set(options.operators)
    if narrow or {"dense", "batch_matmul"} & set(options.operators):
        searches.append(Search("cublas.dense", "matmul", product, anchor=True))
    if {"int8", "conv2d"} & set(options.operators):
        searches.append(Search("cublas.conv2d", "nn.conv2d", product, anchor=True))
    return searches

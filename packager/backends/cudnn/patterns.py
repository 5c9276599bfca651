"""The searches of the cudnn backend: convolutions with the padding before and the epilogue behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packager.backends.base import Found, Search
from packager.backends.cudnn.options import CudnnOptions
from packager.backends.cudnn.problem import read_problem
from packager.graph.dataflow import Dataflow
from packager.graph.products.convolution import OPERATORS, read_convolution, with_padding
from packager.graph.products.epilogues import chains


def make_searches(options: CudnnOptions) -> list[Search]:
    """Return the searches for the groups of operators of a Target."""

    def convolution(flow: Dataflow, anchor: Any) -> Iterator[Found]:
        conv = read_convolution(flow, anchor)
        if conv is None:
            return
        padded = with_padding(flow, conv)
        axis = -1 if conv.channels_last else -1 - len(conv.window)
        for chain in chains(flow, anchor, axis):
            if (problem := read_problem(flow, padded, chain, options)) is not None:
                yield Found((*padded.pads, *chain.variables), problem)

    return [Search(_group(name), name, convolution, anchor=True) for name in OPERATORS if _is_wanted(name, options)]


def _group(operator: str) -> str:
    name = operator.removeprefix("nn.")
    return f"cudnn.{'conv_transpose' if name.endswith('_transpose') else name}"


def _is_wanted(operator: str, options: CudnnOptions) -> bool:
    return _group(operator).removeprefix("cudnn.") in options.operators or "depthwise" in options.operators

"""Rough estimates of the time of partitions, that decide which covers are worth being measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packager.graph.cost import estimate_function
from packager.ir.primitives import Cost
from packager.placement.outline import cut
from packager.placement.placer import Placer


@dataclass(frozen=True)
class Roofline:
    """The rates of a kind of device: FLOPs and bytes a microsecond, and microseconds a call.

    ``leftover`` is how many times as long the code generator takes for an operation as a backend, which has products
    tuned by hand.
    """

    flops: float
    bytes: float
    call: float
    leftover: float = 4.0

    def microseconds(self, cost: Cost, *, leftover: bool = False) -> float:
        """Return the least time of a call."""
        moved = cost.bytes_read + cost.bytes_written
        flops = cost.flops * (self.leftover if leftover else 1.0)
        return self.call + max(flops / self.flops, moved / self.bytes)


# One core with AVX2, and a GPU of a data center. Only the order of covers depends on them.
ROOFLINES = {"cpu": Roofline(5e4, 1e4, 1.0), "cuda": Roofline(2e8, 2e6, 2.0)}


def leftover_times(placer: Placer, roofline: Roofline) -> Callable[[int], float]:
    """Return a function that estimates the microseconds of a binding that the code generator compiles alone."""
    known: dict[int, float] = {}

    def microseconds(node: int) -> float:
        if node not in known:
            known[node] = _alone(placer, node, roofline)
        return known[node]

    return microseconds


def _alone(placer: Placer, node: int, roofline: Roofline) -> float:
    if node in placer.graph.no_tensors or not _reads_tensors(placer, node):
        return roofline.call
    function: Any = cut(placer.graph, frozenset([node])).function
    return roofline.microseconds(estimate_function(function, placer.names, placer.dims), leftover=True)


def _reads_tensors(placer: Placer, node: int) -> bool:
    return placer.graph.no_tensors.isdisjoint(placer.graph.reads[node])

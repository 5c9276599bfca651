"""Rough estimates of the time of partitions, that decide which covers are worth being measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.graph.cost import estimate_function
from packager.ir.primitives import Cost
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


class OperatorTimes:
    """Estimates of single bindings; each is computed once."""

    def __init__(self, placer: Placer, roofline: Roofline) -> None:
        self._placer = placer
        self._roofline = roofline
        self._costs: dict[int, Cost | None] = {}

    def leftover(self, node: int) -> float:
        """Return the microseconds of a binding that the code generator compiles alone."""
        cost = self._cost(node)
        return self._roofline.call if cost is None else self._roofline.microseconds(cost, leftover=True)

    def joining(self, producer: int) -> float:
        """Return the microseconds saved if a reader is in the producer's call: a call, and a result not stored."""
        cost = self._cost(producer)
        return self._roofline.call + (0.0 if cost is None else 2 * cost.bytes_written / self._roofline.bytes)

    def _cost(self, node: int) -> Cost | None:
        """Return the cost of a binding alone; None if it has or reads what is no tensor."""
        if node not in self._costs:
            placer = self._placer
            no_tensors = placer.graph.no_tensors
            if node in no_tensors or not no_tensors.isdisjoint(placer.graph.reads[node]):
                self._costs[node] = None
            else:
                function: Any = placer.cut(frozenset([node])).function
                self._costs[node] = estimate_function(function, placer.names, placer.dims)
        return self._costs[node]

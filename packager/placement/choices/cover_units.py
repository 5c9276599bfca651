"""The units that covers of a region consist of, as sets of bits over a topological order of its operators.

A unit is a candidate, or an operator that is left to TVM.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Joined = Callable[[str | None, int, int], float]
"""Microseconds that a backend (None: TVM) saves if it computes an operator and a reader of it in one call."""


@dataclass(frozen=True)
class CoverCandidate:
    """Operators that a backend can compile as one partition, and the estimated microseconds of a call.

    ``merges``: the backend joins adjacent partitions, so it does not matter how its operators are split into them.
    """

    operators: frozenset[int]
    backend: str
    microseconds: float
    merges: bool = False


class Unit(NamedTuple):
    """Sets of operators by position; ``identity`` is what the unit assigns, as bits.

    ``kind`` numbers who joins adjacent units: 0 is TVM, -1 a backend that does not. ``edges`` are the positions of
    other operators that the unit reads or that read it, with the microseconds that joining saves.
    """

    operators: int
    predecessors: int
    successors: int
    microseconds: float
    identity: int
    candidate: CoverCandidate | None
    kind: int
    edges: tuple[tuple[int, float], ...]


class Region:
    """A region's operators in a depth-first order, and the units that contain each.

    ``live`` has, for each position, the operators before it that one at or after it reads; ``least`` the microseconds
    of an operator at best.
    """

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        candidates: Sequence[CoverCandidate],
        leftover: Callable[[int], float],
        joined: Joined | None,
    ) -> None:
        _check(predecessors, candidates)
        self._order = _depth_first(predecessors)
        self._joined = joined
        self.size = len(self._order)
        self._position = {number: place for place, number in enumerate(self._order)}
        self._before = [self._bits(predecessors[number]) for number in self._order]
        self._after = [0] * self.size
        for place, bits in enumerate(self._before):
            for other in places(bits):
                self._after[other] |= 1 << place
        self.live = [0]
        for place in range(self.size):
            known = self.live[-1] | 1 << place
            self.live.append(union(1 << other for other in places(known) if self._after[other] >> place + 1))
        merging = dict.fromkeys(candidate.backend for candidate in candidates if candidate.merges)
        self._kinds: dict[str | None, int] = {None: 0} | {kind: number for number, kind in enumerate(merging, 1)}
        self.kinds = len(self._kinds) if joined else 0
        self.units: list[list[Unit]] = [[] for _ in self._order]
        for unit in self._candidate_units(candidates):
            for place in places(unit.operators):
                self.units[place].append(unit)
        for place, number in enumerate(self._order):
            self.units[place].append(self._unit((number,), _checked(leftover(number)), 0, None))
        shares = ((unit.microseconds / unit.operators.bit_count() for unit in found) for found in self.units)
        self.least = [min(share) for share in shares]

    def _candidate_units(self, candidates: Iterable[CoverCandidate]) -> Iterator[Unit]:
        """Yield the units of candidates that no path leaves and enters again."""
        ancestors = _closure(self._before, range(self.size))
        descendants = _closure(self._after, reversed(range(self.size)))
        identities: dict[tuple[str, object], int] = {}
        for candidate in candidates:
            bits = self._bits(candidate.operators)
            inner = list(places(bits))
            around = union(ancestors[place] for place in inner) & union(descendants[place] for place in inner)
            if around & ~bits:
                continue
            parts: Iterable[object] = candidate.operators if candidate.merges else (candidate.operators,)
            identity = 0
            for part in parts:
                identity |= identities.setdefault((candidate.backend, part), 1 << len(identities))
            yield self._unit(candidate.operators, candidate.microseconds, identity, candidate)

    def _unit(
        self, operators: Iterable[int], microseconds: float, identity: int, candidate: CoverCandidate | None
    ) -> Unit:
        bits = self._bits(operators)
        before = union(self._before[place] for place in places(bits)) & ~bits
        after = union(self._after[place] for place in places(bits)) & ~bits
        backend = candidate.backend if candidate else None
        joins = candidate is None or candidate.merges
        edges = tuple(self._edges(bits, backend)) if joins else ()
        return Unit(
            bits, before, after, microseconds, identity, candidate, self._kinds[backend] if joins else -1, edges
        )

    def _edges(self, bits: int, backend: str | None) -> Iterator[tuple[int, float]]:
        if self._joined is None:
            return
        for place in places(bits):
            for other in places(self._before[place] & ~bits):
                yield other, self._joined(backend, self._order[other], self._order[place])
            for other in places(self._after[place] & ~bits):
                yield other, self._joined(backend, self._order[place], self._order[other])

    def _bits(self, operators: Iterable[int]) -> int:
        return union(1 << self._position[number] for number in operators)


def _check(predecessors: Sequence[Sequence[int]], candidates: Iterable[CoverCandidate]) -> None:
    for number, before in enumerate(predecessors):
        if any(not 0 <= other < number for other in before):
            raise ValueError(f"operator {number} has the predecessors {list(before)}: not in topological order")
    for candidate in candidates:
        if not candidate.operators or any(not 0 <= other < len(predecessors) for other in candidate.operators):
            raise ValueError(f"{candidate} is not of these {len(predecessors)} operators")
        _checked(candidate.microseconds)


def _checked(microseconds: float) -> float:
    if not 0 <= microseconds < math.inf:
        raise ValueError(f"{microseconds} microseconds")
    return microseconds


def _depth_first(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Return the operators in a topological order that follows chains: candidates then span few others."""
    readers: list[int] = [0] * len(predecessors)
    for before in predecessors:
        for other in before:
            readers[other] += 1
    order: list[int] = []
    seen: set[int] = set()
    for sink in (number for number, count in enumerate(readers) if count == 0):
        pending = [sink]
        while pending:
            number = pending[-1]
            missing = [other for other in predecessors[number] if other not in seen]
            if missing:
                pending.append(missing[0])
                continue
            pending.pop()
            if number not in seen:
                seen.add(number)
                order.append(number)
    return order


def _closure(edges: Sequence[int], order: Iterable[int]) -> list[int]:
    """Return all positions that each position leads to; ``order`` has those first."""
    result = [0] * len(edges)
    for place in order:
        result[place] = edges[place] | union(result[other] for other in places(edges[place]))
    return result


def union(sets: Iterable[int]) -> int:
    """Return the union of sets of bits."""
    return functools.reduce(operator.or_, sets, 0)


def first_clear(bits: int, start: int) -> int:
    """Return the first position from ``start`` on that is not in a set."""
    while bits >> start & 1:
        start += 1
    return start


def places(bits: int) -> Iterator[int]:
    """Yield the positions in a set, rising."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest

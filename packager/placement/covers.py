"""Enumerate the cheapest covers of a region: which backend takes which of its operators, the rest left to TVM.

Dynamic programming over the first operator that is not covered yet: only candidates that contain it, or leaving it to
TVM, extend a partial cover, so that no cover is made in two orders (as in TVM's Collage, RFC 0062). Covers whose groups
would form a cycle when contracted to one call each are left out.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

STATES = 20_000
"""Maximum number of states; of more with the same first uncovered operator, the most promising are kept."""


@dataclass(frozen=True)
class CoverCandidate:
    """Operators that a backend can compile as one partition, and the estimated microseconds of a call.

    ``merges``: the backend joins adjacent partitions, so it does not matter how its operators are split into them.
    """

    operators: frozenset[int]
    backend: str
    microseconds: float
    merges: bool = False


@dataclass(frozen=True)
class Cover:
    """Disjoint candidates, ordered by their first operators, and the estimated microseconds of the whole region."""

    candidates: tuple[CoverCandidate, ...]
    microseconds: float

    @property
    def covered(self) -> frozenset[int]:
        """The operators that are not left to TVM."""
        return frozenset().union(*(candidate.operators for candidate in self.candidates))


def cheapest_covers(
    predecessors: Sequence[Sequence[int]],
    candidates: Sequence[CoverCandidate],
    leftover: Callable[[int], float],
    count: int,
) -> list[Cover]:
    """Return the ``count`` cheapest covers, cheapest first, ties in the order of ``candidates``.

    ``predecessors`` of each operator have smaller numbers; ``leftover`` estimates the microseconds of an operator that
    is left to TVM. Covers that differ only in how the operators of a merging backend are split count once, with their
    cheapest split. The result is exact unless there are more than ``STATES`` states, a bound on the time.
    Raises ValueError for numbers that are not in topological order, empty candidates, and negative or infinite times.
    """
    region = _Region(predecessors, candidates, leftover)
    return region.covers(count) if count > 0 else []


class _OpenGroup(NamedTuple):
    """A group with operators behind the first uncovered one: these, and all known operators of or after the group."""

    ahead: int
    reached: int


class _Partial(NamedTuple):
    """A partial cover: its identity is the set of the operators' assignments, as bits."""

    microseconds: float
    identity: int
    candidate: CoverCandidate | None
    before: _Partial | None


class _Choice(NamedTuple):
    """A candidate, or an operator left to TVM: sets of operators are bits by position."""

    operators: int
    predecessors: int
    successors: int
    microseconds: float
    identity: int
    candidate: CoverCandidate | None


_State = frozenset[_OpenGroup]


class _Region:
    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        candidates: Sequence[CoverCandidate],
        leftover: Callable[[int], float],
    ) -> None:
        _check(predecessors, candidates)
        order = _depth_first(predecessors)
        self.size = len(order)
        self.position = {number: place for place, number in enumerate(order)}
        self.before = [self._bits(predecessors[number]) for number in order]
        self.after = [0] * self.size
        for place, bits in enumerate(self.before):
            for other in _places(bits):
                self.after[other] |= 1 << place
        self.ancestors = _closure(self.before, range(self.size))
        self.descendants = _closure(self.after, reversed(range(self.size)))
        # Operators before a place that one at or after it reads.
        self.live = [0]
        for place in range(self.size):
            known = self.live[-1] | 1 << place
            self.live.append(_union(1 << other for other in _places(known) if self.after[other] >> place + 1))
        self.choices: list[list[_Choice]] = [[] for _ in order]
        identities: dict[tuple[str, object], int] = {}
        for candidate in filter(self._convex, candidates):
            parts: Iterable[object] = candidate.operators if candidate.merges else (candidate.operators,)
            identity = 0
            for part in parts:
                identity |= identities.setdefault((candidate.backend, part), 1 << len(identities))
            choice = self._choice(candidate.operators, candidate.microseconds, identity, candidate)
            for member in candidate.operators:
                self.choices[self.position[member]].append(choice)
        for place, number in enumerate(order):
            self.choices[place].append(self._choice((number,), _checked(leftover(number)), 0, None))
        shares = ((choice.microseconds / choice.operators.bit_count() for choice in found) for found in self.choices)
        self.least = [min(share) for share in shares]  # microseconds of an operator, at best

    def _convex(self, candidate: CoverCandidate) -> bool:
        """Whether no path leaves the candidate and enters it again."""
        bits = self._bits(candidate.operators)
        ancestors = descendants = 0
        for place in _places(bits):
            ancestors |= self.ancestors[place]
            descendants |= self.descendants[place]
        return not ancestors & descendants & ~bits

    def _bits(self, operators: Iterable[int]) -> int:
        result = 0
        for number in operators:
            result |= 1 << self.position[number]
        return result

    def _choice(
        self, operators: Iterable[int], microseconds: float, identity: int, candidate: CoverCandidate | None
    ) -> _Choice:
        bits = self._bits(operators)
        before = after = 0
        for place in _places(bits):
            before |= self.before[place]
            after |= self.after[place]
        return _Choice(bits, before & ~bits, after & ~bits, microseconds, identity, candidate)

    def covers(self, count: int) -> list[Cover]:
        """Return the cheapest covers, by the states where all operators before a place are covered, and it is not."""
        states: list[dict[_State, dict[int, _Partial]]] = [{} for _ in range(self.size + 1)]
        states[0][frozenset()] = {0: _Partial(0.0, 0, None, None)}
        for place in range(self.size):
            found, states[place] = states[place], {}
            for state, partials in self._most_promising(found, place):
                best = sorted(partials.values(), key=_microseconds)[:count]
                covered = ((1 << place) - 1) | _union(group.ahead for group in state)
                for choice in self.choices[place]:
                    following = None if choice.operators & covered else _with_unit(state, choice)
                    if following is not None:
                        target = _first_clear(covered | choice.operators, place)
                        key = self._pruned(following, target)
                        _extend(states[target].setdefault(key, {}), best, choice)
        complete = states[self.size].get(frozenset(), {})
        return [_cover(partial) for partial in sorted(complete.values(), key=_microseconds)[:count]]

    def _most_promising(
        self, states: dict[_State, dict[int, _Partial]], place: int
    ) -> Iterable[tuple[_State, dict[int, _Partial]]]:
        """Return the states, the most promising if there are too many: cheap for what they have covered behind."""
        limit = max(STATES // self.size, 1)
        if len(states) <= limit:
            return states.items()

        def bound(entry: tuple[_State, dict[int, _Partial]]) -> float:
            if not entry[0]:  # the only state that is sure to become a cover
                return -math.inf
            ahead = _union(group.ahead for group in entry[0]) >> place
            spared = sum(self.least[place + other] for other in _places(ahead))
            return min(partial.microseconds for partial in entry[1].values()) - spared

        return sorted(states.items(), key=bound)[:limit]

    def _pruned(self, groups: list[_OpenGroup], place: int) -> _State:
        """Return the part of the groups that decides about later cycles, when all before ``place`` is covered."""
        ahead = _union(group.ahead for group in groups) >> place << place
        known = ahead | self.live[place]
        return frozenset(
            _OpenGroup(group.ahead >> place << place, group.reached & known) for group in groups if group.ahead >> place
        )


def _with_unit(state: _State, unit: _Choice) -> list[_OpenGroup] | None:
    """Return the groups after another unit, itself included; None if it would be on a cycle."""
    after = [group for group in state if group.ahead & unit.successors]
    reached = unit.operators | _union(group.ahead | group.reached for group in after)
    result = [_OpenGroup(unit.operators, reached)]
    for group in state:
        if group.reached & unit.predecessors:
            if group.ahead & reached:
                return None
            result.append(_OpenGroup(group.ahead, group.reached | reached))
        else:
            result.append(group)
    return result


def _extend(partials: dict[int, _Partial], best: Iterable[_Partial], choice: _Choice) -> None:
    for partial in best:
        microseconds = partial.microseconds + choice.microseconds
        identity = partial.identity | choice.identity
        known = partials.get(identity)
        if known is None or microseconds < known.microseconds:
            partials[identity] = _Partial(microseconds, identity, choice.candidate, partial)


def _cover(partial: _Partial) -> Cover:
    found = []
    step: _Partial | None = partial
    while step is not None:
        if step.candidate is not None:
            found.append(step.candidate)
        step = step.before
    return Cover(tuple(sorted(found, key=lambda candidate: min(candidate.operators))), partial.microseconds)


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


def _microseconds(partial: _Partial) -> float:
    return partial.microseconds


def _union(sets: Iterable[int]) -> int:
    return functools.reduce(operator.or_, sets, 0)


def _closure(edges: Sequence[int], places: Iterable[int]) -> list[int]:
    """Return all places that each place leads to; ``places`` are ordered so that those come first."""
    result = [0] * len(edges)
    for place in places:
        result[place] = edges[place] | _union(result[other] for other in _places(edges[place]))
    return result


def _first_clear(bits: int, start: int) -> int:
    while bits >> start & 1:
        start += 1
    return start


def _places(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest

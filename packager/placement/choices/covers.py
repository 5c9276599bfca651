"""Enumerate the cheapest covers of a region: which backend takes which of its operators, the rest left to TVM.

Dynamic programming over the first operator that is not covered yet: only candidates that contain it, or leaving it to
TVM, extend a partial cover, so that no cover is made in two orders (as in TVM's Collage, RFC 0062). Covers whose groups
would form a cycle when contracted to one call each are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from packager.placement.choices.cover_units import CoverCandidate, Joined, Region, Unit, first_clear, places, union

STATES = 12_000
"""Maximum number of states; of more with the same first uncovered operator, the most promising are kept."""


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
    joined: Joined | None = None,
) -> list[Cover]:
    """Return the ``count`` cheapest covers, cheapest first, ties in the order of ``candidates``.

    ``predecessors`` of each operator have smaller numbers; ``leftover`` estimates the microseconds of an operator that
    is left to TVM. ``joined(backend, producer, reader)`` are the microseconds saved where both are of different
    candidates of one merging backend, or (None) left to TVM, which fuses them. Covers that differ only in how the
    operators of a merging backend are split count once, with their cheapest split. The result is exact unless there
    are more than ``STATES`` states, a bound on the time.

    Raises ValueError for numbers that are not in topological order, empty candidates, and negative or infinite times.
    """
    return _Search(Region(predecessors, candidates, leftover, joined)).covers(count) if count > 0 else []


class _OpenGroup(NamedTuple):
    """A group with operators behind the first uncovered one: these, and all known operators of or after the group."""

    ahead: int
    reached: int


class _State(NamedTuple):
    """What decides about the rest of a cover: open groups, and who computes what later operators read or are read by.

    ``computed`` has the operators of each kind that joins.
    """

    groups: frozenset[_OpenGroup]
    computed: tuple[int, ...]


class _Partial(NamedTuple):
    """A partial cover: its identity is the set of the operators' assignments, as bits."""

    microseconds: float
    identity: int
    candidate: CoverCandidate | None
    before: _Partial | None


_States = dict[_State, dict[int, _Partial]]


class _Search:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.states: list[_States] = [{} for _ in range(region.size + 1)]

    def covers(self, count: int) -> list[Cover]:
        """Return the cheapest covers, by the states where all operators before a place are covered, and it is not."""
        region, states = self.region, self.states
        states[0][_State(frozenset(), (0,) * region.kinds)] = {0: _Partial(0.0, 0, None, None)}
        for place in range(region.size):
            found, states[place] = states[place], {}
            for state, partials in self._most_promising(found, place):
                best = heapq.nsmallest(count, partials.values(), key=_microseconds)
                covered = ((1 << place) - 1) | union(group.ahead for group in state.groups)
                for unit in region.units[place]:
                    groups = None if unit.operators & covered else _with_unit(state.groups, unit)
                    if groups is not None:
                        target = first_clear(covered | unit.operators, place)
                        key = self._pruned(groups, state.computed, unit, target)
                        _extend(states[target].setdefault(key, {}), best, unit, _saved(state.computed, unit))
        complete: dict[int, _Partial] = {}
        for partials in states[region.size].values():
            for identity, partial in partials.items():
                if identity not in complete or partial.microseconds < complete[identity].microseconds:
                    complete[identity] = partial
        return [_cover(partial) for partial in heapq.nsmallest(count, complete.values(), key=_microseconds)]

    def _most_promising(self, states: _States, place: int) -> list[tuple[_State, dict[int, _Partial]]]:
        """Return the states, the most promising if there are too many: cheap for what they have covered behind.

        The best one without open groups is among them: it is sure to become a cover.
        """
        limit = max(STATES // self.region.size, 2)
        if len(states) <= limit:
            return list(states.items())

        def bound(entry: tuple[_State, dict[int, _Partial]]) -> float:
            ahead = union(group.ahead for group in entry[0].groups) >> place
            spared = sum(self.region.least[place + other] for other in places(ahead))
            return min(partial.microseconds for partial in entry[1].values()) - spared

        ordered = sorted(states.items(), key=bound)
        closed = next(entry for entry in ordered if not entry[0].groups)
        kept = ordered[:limit]
        return kept if closed in kept else [closed, *kept[1:]]

    def _pruned(self, groups: list[_OpenGroup], computed: tuple[int, ...], unit: Unit, place: int) -> _State:
        """Return the state after a unit, when all operators before ``place`` are covered."""
        ahead = union(group.ahead for group in groups) >> place << place
        known = ahead | self.region.live[place]
        return _State(
            frozenset(
                _OpenGroup(group.ahead >> place << place, group.reached & known)
                for group in groups
                if group.ahead >> place
            ),
            tuple((o | unit.operators if kind == unit.kind else o) & known for kind, o in enumerate(computed)),
        )


def _with_unit(state: Iterable[_OpenGroup], unit: Unit) -> list[_OpenGroup] | None:
    """Return the groups after another unit, itself included; None if it would be on a cycle."""
    after = [group for group in state if group.ahead & unit.successors]
    reached = unit.operators | union(group.ahead | group.reached for group in after)
    result = [_OpenGroup(unit.operators, reached)]
    for group in state:
        if group.reached & unit.predecessors:
            if group.ahead & reached:
                return None
            result.append(_OpenGroup(group.ahead, group.reached | reached))
        else:
            result.append(group)
    return result


def _saved(computed: tuple[int, ...], unit: Unit) -> float:
    """Return the microseconds that joining a unit with what its backend computes already saves."""
    if not unit.edges:
        return 0.0
    mine = computed[unit.kind]
    return sum(us for place, us in unit.edges if mine >> place & 1)


def _extend(partials: dict[int, _Partial], best: Iterable[_Partial], unit: Unit, saved: float) -> None:
    for partial in best:
        microseconds = partial.microseconds + unit.microseconds - saved
        identity = partial.identity | unit.identity
        known = partials.get(identity)
        if known is None or microseconds < known.microseconds:
            partials[identity] = _Partial(microseconds, identity, unit.candidate, partial)


def _cover(partial: _Partial) -> Cover:
    found = []
    step: _Partial | None = partial
    while step is not None:
        if step.candidate is not None:
            found.append(step.candidate)
        step = step.before
    return Cover(tuple(sorted(found, key=lambda candidate: min(candidate.operators))), partial.microseconds)


def _microseconds(partial: _Partial) -> float:
    return partial.microseconds

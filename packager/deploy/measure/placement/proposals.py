"""Propose vectors to measure next: the best ones with one or two digits changed.

Two changes that are slower alone may be faster together, above all where one follows the other in the run: a backend
that merges saves a call only if it takes both. So pairs of neighbors are proposed in the order of what their changes
cost alone, beside random changes of the whole population.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

from packager.deploy.measure.placement.space import Vector

Losses = dict[int, tuple[float, ...]]
"""By place: how much slower than the fastest each alternative was in the descent, as a part of a run."""

FROM_PAIRS = 2 / 3
"""Part of the children that are changes of neighbors, cheapest first; the others are random."""
NEIGHBORS = 3 / 4
"""Probability that the second of two random changes is a neighbor's."""
PAIRS = 3 / 4
"""Probability that a random child has two changes."""
TRIES = 20
"""Random children that are tried for each that is wanted: those that were measured already are none."""


class Proposals:
    """Children of a population, of the ``digits`` of each place; ``small`` spaces, of at most so many vectors, are
    enumerated."""

    def __init__(self, digits: Sequence[Sequence[int]], losses: Losses, seed: int, small: int) -> None:
        self._digits = digits
        self._losses = losses
        self._random = random.Random(seed)
        self._enumerated = math.prod(map(len, digits)) <= small
        self._open = [place for place, each in enumerate(digits) if len(each) > 1]
        # The next place in the run; equal regions repeat, so the first follows the last.
        self._next = dict(zip(self._open, [*self._open[1:], *self._open[:1]], strict=True))

    def children(self, population: Sequence[Vector], count: int, is_known: Callable[[Vector], bool]) -> list[Vector]:
        """Return at most ``count`` vectors that were not measured yet; ``population`` has the fastest first."""
        best = population[0]
        if self._enumerated:
            rest = itertools.product(*self._digits)
            ordered = iter(sorted(rest, key=lambda vector: (self._loss(best, vector), vector)))
        else:
            ordered = self._changes(best)
        wanted = count if self._enumerated else round(count * FROM_PAIRS)
        found = list(itertools.islice((vector for vector in ordered if not is_known(vector)), wanted))
        for _ in range(TRIES * (count - len(found))):
            child = self._child(population)
            if child is not None and child not in found and not is_known(child):
                found.append(child)
            if len(found) == count:
                break
        return found

    def _loss(self, best: Vector, vector: Vector) -> float:
        """Return what the changes of ``best`` cost together, were they independent."""
        pairs = zip(best, vector, strict=True)
        return sum(self._change(place, *digits) for place, digits in enumerate(pairs))

    def _change(self, place: int, before: int, after: int) -> float:
        losses = self._losses.get(place)
        return losses[after] - losses[before] if losses else 0.0

    def _changes(self, best: Vector) -> Iterator[Vector]:
        """Yield changes of one digit and of two neighbors, those first that cost little alone."""
        singles = {place: [(place, digit) for digit in self._others(best, place)] for place in self._open}
        pairs = [
            change
            for place, following in self._next.items()
            if place != following
            for change in itertools.product(singles[place], singles[following])
        ]
        changes = [*((change,) for place in self._open for change in singles[place]), *pairs]
        vectors = {_changed(best, change): None for change in changes}
        yield from sorted(vectors, key=lambda vector: (self._loss(best, vector), vector))

    def _others(self, vector: Vector, place: int) -> list[int]:
        return [digit for digit in self._digits[place] if digit != vector[place]]

    def _child(self, population: Sequence[Vector]) -> Vector | None:
        places, following, draw = self._open, self._next, self._random
        if not places:
            return None
        parent = draw.choices(population, weights=range(len(population), 0, -1))[0]
        first = draw.choice(places)
        changed = [first]
        if draw.random() < PAIRS:
            near = [other for other in places if first in (following[other], other) or other == following[first]]
            second = draw.choice(near if draw.random() < NEIGHBORS else places)
            changed.append(second)
        return _changed(parent, [(place, self._digit(parent, place)) for place in changed])

    def _digit(self, parent: Vector, place: int) -> int:
        """Return another digit, the more probable the less it cost alone."""
        others = sorted(self._others(parent, place), key=lambda digit: self._change(place, parent[place], digit))
        return self._random.choices(others, weights=[1 / (rank + 1) for rank in range(len(others))])[0]


def _changed(vector: Vector, changes: Sequence[tuple[int, int]]) -> Vector:
    digits = list(vector)
    for place, digit in changes:
        digits[place] = digit
    return tuple(digits)

"""Screen the alternatives of all choices at once, by profiles of a few vectors: what each takes where it runs.

A profiled run says what every choice takes, so as many vectors as a choice has alternatives say all. What is clearly
slower there need not be tried in whole runs, which tell a change of a few thousandths of a run only after many.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packager.deploy.measure.placement.space import Space, Vector
from packager.deploy.measure.placement.timing import Ledger, Times
from packager.deploy.measure.statistics import CERTAINTY, center

PROFILED_US = 100.0
"""Shorter runs are not profiled: calls of less than a microsecond take longer to time than to run."""
MARGIN = 0.1
"""How much slower than the fastest an alternative is, as a part of the choice's time, that is not tried again."""
MATTERS = 0.002
"""Differences below this part of a run are not measured in whole runs."""


@dataclass(frozen=True)
class Screened:
    """The alternatives of a place in profiles: microseconds, each where it was fastest, and errors of the differences
    to the fastest; which are worth whole runs (``close``)."""

    us: tuple[float, ...]
    errors: tuple[float, ...]
    close: tuple[int, ...]

    @property
    def fastest(self) -> int:
        """The fastest alternative."""
        return int(np.argmin(self.us))


def screen(space: Space, ledger: Ledger, plans: Sequence[Vector], run_us: float, rounds: int) -> dict[int, Screened]:
    """Profile the plans, and further vectors until every alternative of every choice has run; return what was found.

    Nothing if profiles do not tell choices apart, or runs are short.
    """
    if run_us < PROFILED_US:
        return {}
    sizes = [len(place.alternatives) for place in space.places if not place.is_function]
    profiles: dict[Vector, Times] = {}
    vectors = list(plans)
    while vectors:
        times = ledger.profile(vectors[0], rounds)
        if not times.shape[1]:
            return {}
        profiles[vectors.pop(0)] = times
        vectors = vectors or _next(sizes, list(profiles))
    together = _fast_together(len(sizes), profiles)
    return {number: _judge(number, count, profiles, together, run_us) for number, count in enumerate(sizes)}


def _next(sizes: Sequence[int], known: Sequence[Vector]) -> list[Vector]:
    """Return a vector of alternatives that no known one has, where there are any."""
    digits = list(known[0])
    for number, count in enumerate(sizes):
        seen = {vector[number] for vector in known}
        digits[number] = next((digit for digit in range(count) if digit not in seen), digits[number])
    return [tuple(digits)] if tuple(digits) not in known else []


def _fast_together(choices: int, profiles: Mapping[Vector, Times]) -> set[tuple[int, int]]:
    """Return choices and alternatives that are fast beside that of the next choice: one may be slower for the other."""
    found: set[tuple[int, int]] = set()
    for first in range(choices if choices > 1 else 0):
        second = (first + 1) % choices  # equal regions repeat: the first follows the last
        sums = {vector: float(np.median(us[:, first] + us[:, second])) for vector, us in profiles.items()}
        least = min(sums.values())
        fast = [vector for vector, us in sums.items() if us <= least * (1 + MARGIN)]
        found |= {(place, vector[place]) for vector in fast for place in (first, second)}
    return found


def _judge(
    number: int, count: int, profiles: Mapping[Vector, Times], together: Collection[tuple[int, int]], run_us: float
) -> Screened:
    found: list[tuple[float, float]] = []
    for digit in range(count):
        centers = [center(times[:, number : number + 1]) for v, times in profiles.items() if v[number] == digit]
        found.append(min((float(middle), float(error)) for (middle,), (error,) in centers))
    least, noise = min(found)
    errors = tuple(math.hypot(error, noise) if us > least else 0.0 for us, error in found)
    margin = max(MARGIN * least, MATTERS * run_us)
    close = tuple(
        digit
        for digit, (us, _) in enumerate(found)
        if us - least <= max(margin, CERTAINTY * errors[digit]) or (number, digit) in together
    )
    return Screened(tuple(us for us, _ in found), errors, close)

"""Screen the alternatives of all choices at once, by profiles of a few vectors: what each takes where it runs.

A profiled run says what every choice takes, so as many vectors as a choice has alternatives say all. What is clearly
slower there need not be tried in whole runs, which tell a change of a thousandth of a run only after many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packager.deploy.measure.placement.space import Space, Vector
from packager.deploy.measure.placement.timing import Ledger, Times
from packager.deploy.measure.statistics import CERTAINTY, center

PROFILED_US = 100.0
"""Shorter runs are not profiled: calls of less than a microsecond take longer to time than to run."""
ROUNDS = 7
MARGIN = 0.1
"""How much slower than the fastest an alternative is, as a part of the choice's time, that is not tried again."""
MATTERS = 0.001
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


def screen(space: Space, ledger: Ledger, plans: Sequence[Vector], run_us: float) -> dict[int, Screened]:
    """Profile the plans, and further vectors until every alternative of every choice has run; return what was found.

    Nothing if profiles do not tell choices apart, or runs are short.
    """
    if run_us < PROFILED_US:
        return {}
    choices = [number for number, place in enumerate(space.places) if not place.is_function]
    found: dict[tuple[int, int], Times] = {}
    vectors = list(plans)
    while vectors:
        vector = vectors.pop(0)
        times = ledger.profile(vector, ROUNDS)
        if not times.shape[1]:
            return {}
        for number in choices:
            known = found.get((number, vector[number]))
            if known is None or np.median(times[:, number]) < np.median(known):
                found[number, vector[number]] = times[:, number]
        vectors = vectors or _next(space, choices, found, plans[0])
    return {number: _judge(found, number, len(space.places[number].alternatives), run_us) for number in choices}


def _next(space: Space, choices: Sequence[int], found: dict[tuple[int, int], Times], vector: Vector) -> list[Vector]:
    """Return a vector of alternatives that have not run yet, where there are any."""
    digits = list(vector)
    for number in choices:
        missing = (d for d in range(len(space.places[number].alternatives)) if (number, d) not in found)
        digits[number] = next(missing, vector[number])
    return [tuple(digits)] if tuple(digits) != vector else []


def _judge(found: dict[tuple[int, int], Times], number: int, count: int, run_us: float) -> Screened:
    series = [found[number, digit] for digit in range(count)]
    middles, errors = zip(*(center(times[:, None]) for times in series), strict=True)
    us = [float(middle[0]) for middle in middles]
    best = int(np.argmin(us))
    noise = [float(np.hypot(error[0], errors[best][0])) if d != best else 0.0 for d, error in enumerate(errors)]
    least = max(MARGIN * us[best], MATTERS * run_us)
    close = tuple(d for d in range(count) if us[d] - us[best] <= max(least, CERTAINTY * noise[d]))
    return Screened(tuple(us), tuple(noise), close)

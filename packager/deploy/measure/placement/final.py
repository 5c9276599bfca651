"""The final of a search: the fastest vectors and all plans in turns, so that what wins is no slower than any plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packager.deploy.measure.placement.space import Vector
from packager.deploy.measure.placement.timing import PROBE_ROUNDS, Ledger, Times
from packager.deploy.measure.statistics import significantly_less

REPEATED_FINALS = 4
"""Maximum number of finals: repeated while a plan within the noise of the fastest seems slower by more than CLOSE."""
CLOSE = 0.005


@dataclass(frozen=True)
class Finalist:
    """A vector of the final: its plan's name, None if the search found it, and microseconds of a run.

    ``ratio`` has the quartiles of its turns over those of the winner; None if it was not in the final.
    """

    plan: str | None
    vector: Vector
    us: float
    ratio: tuple[float, float] | None = None


def hold_final(
    ledger: Ledger,
    plans: Mapping[Vector, str],
    found: Sequence[Vector],
    rounds_now: Callable[[int], int],
    announce: Callable[[str, int], None],
) -> tuple[Finalist, tuple[Finalist, ...]]:
    """Race plans and other vectors; return the earliest within the noise of the fastest, and all.

    ``rounds_now`` says how many rounds of so many vectors there is time for.
    """
    order = [*plans, *found]
    times: dict[Vector, Times] = {vector: np.empty(0) for vector in order}
    racing = order
    for number in range(REPEATED_FINALS):
        rounds = rounds_now(len(racing))
        if number and rounds < PROBE_ROUNDS:
            break
        rounds = max(rounds, PROBE_ROUNDS)
        announce(f"final: {len(plans)} plans and {len(found)} others, {rounds} rounds", rounds * len(racing))
        raced = ledger.race(racing, rounds)
        times |= {vector: np.concatenate([times[vector], more]) for vector, more in raced.items()}
        longest = max(map(len, times.values()))
        racing = [vector for vector in order if len(times[vector]) == longest]
        winner, best = _winner([times[vector] for vector in racing])
        if np.median(times[racing[winner]]) <= np.median(times[racing[best]]) * (1 + CLOSE):
            break
    fastest = racing[winner]
    finalists = {
        vector: Finalist(plans.get(vector), vector, float(np.median(us)), _ratio(us, times[fastest]))
        for vector, us in times.items()
    }
    return finalists[fastest], tuple(finalists.values())


def _ratio(times: Times, others: Times) -> tuple[float, float]:
    """Return the quartiles of the ratios of two series, turn by turn."""
    common = min(len(times), len(others))
    low, high = np.percentile(times[:common] / others[:common], (25, 75))
    return float(low), float(high)


def _winner(times: Sequence[Times]) -> tuple[int, int]:
    """Return the first series that is not slower than the fastest beyond the noise, and the fastest."""
    best = int(np.argmin([np.median(series) for series in times]))
    return next(index for index in range(best + 1) if not significantly_less(times[best], times[index])), best

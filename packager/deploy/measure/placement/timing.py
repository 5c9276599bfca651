"""Times vectors beside a reference in every batch: their ratio does not change with the clocks of the machine.

A batch during which the reference drifts is repeated. What cannot be measured again, because time is over, is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packager.deploy.measure.placement.space import Vector
from packager.deploy.measure.statistics import CERTAINTY, center

Times = NDArray[np.float64]

MOST_AT_ONCE = 32
"""Maximum number of vectors of a batch."""
DRIFT = 0.03
"""Relative change of the reference's time, beyond noise, from which on a batch is repeated."""
ATTEMPTS = 3
"""Maximum number of measurements of a batch."""
STEADY_ROUNDS = 7
"""Rounds of a batch from which on its drift can be told from noise."""
PROBE_ROUNDS = 4
"""Rounds of a race after which it goes on without those that were clearly slower than the fastest in each of them."""
CLEARLY = 0.02
"""How much slower that is, as a part of a run."""


@dataclass(frozen=True)
class Batch:
    """Microseconds of runs, shape [rounds, vectors], and the seconds that measuring took."""

    times: Times
    seconds: float


class Timer(Protocol):
    """Measures runs of vectors in turns."""

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        """Measure each vector once in each of the rounds."""

    def profile(self, vector: Vector, rounds: int) -> Batch:
        """Measure what each choice takes in runs of a vector, shape [rounds, choices + 1]: the last is all else.

        There are no columns if that cannot be told apart.
        """


@dataclass(frozen=True)
class Estimate:
    """The time of a run relative to the reference, and the standard error of it."""

    ratio: float
    error: float


@dataclass(frozen=True)
class Drift:
    """How the reference's time changed: its extremes in microseconds, the batches repeated, and those kept anyway."""

    lowest_us: float
    highest_us: float
    repeated: int
    kept: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a reader of the results should know."""
        if self.highest_us <= self.lowest_us * (1 + DRIFT) and not self.kept:
            return ()
        text = (
            f"the machine was not steady: a run of the first plan took {self.lowest_us:.1f} to "
            f"{self.highest_us:.1f} us; batches measured again: {self.repeated}"
        )
        return (text + (f", which drifted each time: {self.kept}" if self.kept else ""),)


class Ledger:
    """Measures batches of at most ``most`` vectors, with the reference in each, and remembers each vector's ratio."""

    def __init__(self, timer: Timer, reference: Vector, most: int = MOST_AT_ONCE) -> None:
        self.reference = reference
        self.most = max(most, 2)
        self.elapsed = 0.0
        self.reference_us = 0.0
        self._timer = timer
        self._ratios: dict[Vector, Times] = {}
        self._each = 0.0
        self._levels: list[float] = []
        self._repeated = self._kept = 0

    @property
    def seconds_each(self) -> float:
        """Seconds that a vector takes in a round, by the last batch; a first run of its session counts as one more."""
        return self._each

    @property
    def drift(self) -> Drift:
        """Return how steady the reference was."""
        return Drift(min(self._levels), max(self._levels), self._repeated, self._kept)

    def measured(self) -> list[Vector]:
        """Return the vectors measured so far, the fastest first."""
        return sorted(self._ratios, key=lambda vector: (self.estimate(vector).ratio, vector))

    def knows(self, vector: Vector) -> bool:
        """Whether a vector was measured."""
        return vector in self._ratios

    def estimate(self, vector: Vector) -> Estimate:
        """Return what all measurements of a vector say together."""
        (ratio,), (error,) = center(self._ratios[vector][:, None])
        return Estimate(float(ratio), float(error))

    def measure(self, vectors: Sequence[Vector], rounds: int, *, steady: bool = True) -> Times:
        """Measure distinct vectors; return microseconds at the clocks of the first batch, shape [rounds, vectors].

        Repeats batches that drift, if ``steady``.
        """
        others = [vector for vector in vectors if vector != self.reference]
        size = self.most - 1
        parts = [others[first : first + size] for first in range(0, max(len(others), 1), size)]
        found = {self.reference: np.ones(rounds)}
        for part in parts:
            batch = [self.reference, *part]
            times = self._measure_batch(batch, rounds, ATTEMPTS if steady and rounds >= STEADY_ROUNDS else 1)
            found |= dict(zip(batch, (times / times[:, :1]).T, strict=True))
        for vector, ratios in found.items():
            known = self._ratios.get(vector)
            self._ratios[vector] = ratios if known is None else np.concatenate([known, ratios])
        return np.stack([found[vector] for vector in vectors], axis=1) * self.reference_us

    def race(self, vectors: Sequence[Vector], rounds: int) -> dict[Vector, Times]:
        """Measure distinct vectors, those that are clearly slower in the first rounds no further; return microseconds.

        The first rounds of all are the same turns.
        """
        first = self.measure(vectors, min(PROBE_ROUNDS, rounds))
        best = first[:, int(np.argmin(np.median(first, axis=0)))]
        found = dict(zip(vectors, first.T, strict=True))
        close = [v for v, us in found.items() if us.min() <= best.max() or (us <= best * (1 + CLEARLY)).any()]
        if rounds > PROBE_ROUNDS and len(close) > 1:
            more = self.measure(close, rounds - PROBE_ROUNDS)
            found |= {v: np.concatenate([found[v], times]) for v, times in zip(close, more.T, strict=True)}
        return found

    def profile(self, vector: Vector, rounds: int) -> Times:
        """Return what each choice takes in runs of a vector, as the timer does; that is no measurement of the run."""
        measured = self._timer.profile(vector, rounds)
        self.elapsed += measured.seconds
        return measured.times

    def _measure_batch(self, batch: Sequence[Vector], rounds: int, attempts: int) -> Times:
        for attempt in range(attempts):
            measured = self._timer.time(batch, rounds)
            self.elapsed += measured.seconds
            self._each = measured.seconds / ((rounds + 1) * len(batch))
            reference = measured.times[:, 0]
            moved = attempts > 1 and self._moved(reference)
            if not moved:
                break
            self._repeated += attempt + 1 < attempts
        self._kept += moved
        level = float(np.median(reference))
        self.reference_us = self.reference_us or level
        self._levels.append(level)
        return measured.times

    def _moved(self, reference: Times) -> bool:
        """Whether the reference became slower or faster, within the batch or since the last one."""
        half = len(reference) // 2
        middles, errors = zip(*(center(part[:, None]) for part in (reference[:half], reference[half:])), strict=True)
        first, second = (float(middle[0]) for middle in middles)
        noise = float(np.hypot(*(error[0] for error in errors)))
        last = self._levels[-1] if self._levels else first
        return any(
            abs(now - before) > max(DRIFT * before, CERTAINTY * noise)
            for before, now in ((first, second), (last, (first + second) / 2))
        )

"""How long a search may take: rounds, and a bound on the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.deploy.measure.placement.timing import Ledger
from packager.progress import report

LEAST_ROUNDS = 7
"""Minimum number of rounds of a batch when time is short."""
FINALISTS = 3
"""Vectors found by the search that are in the final beside the plans."""
FINAL_PART = 0.3
"""Part of a bounded time that is kept for the final."""
RACING = 0.5
"""Part of the rounds that a race takes, by experience."""
KEPT = 2
"""Vectors of the population that are measured again in each generation: who was lucky once is not twice."""


@dataclass(frozen=True)
class Effort:
    """How long to search: rounds of a batch, and of the final; children of a generation; ``seconds`` bound it all."""

    rounds: int = 30
    final_rounds: int = 60
    children: int = 12
    generations: int = 6
    seconds: float | None = None
    seed: int = 0


class Budget:
    """What is left of an effort. Work is in vectors times rounds."""

    def __init__(self, effort: Effort, ledger: Ledger, plans: int) -> None:
        self.effort = effort
        self.rounds = effort.rounds
        self._ledger = ledger
        self._plans = plans

    @property
    def child_rounds(self) -> int:
        """Rounds of a generation."""
        return max(self.rounds // 2, min(LEAST_ROUNDS, self.rounds))

    @property
    def final_work(self) -> float:
        """Work of the final."""
        return (self._plans + FINALISTS + 1) * self.effort.final_rounds * RACING

    def evolution_work(self, generations: int, children: int | None = None) -> float:
        """Work of so many generations, of as many children as the effort says by default."""
        count = self.effort.children if children is None else children
        return generations * (1 + KEPT + count) * self.child_rounds * RACING

    def children_in_time(self) -> int:
        """Return how many children of a generation there is time for; 0 if a quarter of them is too many."""
        wanted = self.effort.children
        return next((n for n in (wanted, wanted // 2, wanted // 4) if self.has_time(self.evolution_work(1, n))), 0)

    def descent_work(self, places: Sequence[Sequence[int]]) -> float:
        """Work of a descent over places with these digits."""
        return sum((1 + len(digits)) * self.rounds * RACING for digits in places if len(digits) > 1)

    def work_of_all(self, places: Sequence[Sequence[int]]) -> float:
        """Work of a search without the plans."""
        return self.descent_work(places) + self.evolution_work(self.effort.generations) + self.final_work

    @property
    def _seconds_left(self) -> float | None:
        return None if self.effort.seconds is None else self.effort.seconds - self._ledger.elapsed

    def has_time(self, work: float) -> bool:
        """Whether there is time for this, and for a final after it, of fewer rounds if need be."""
        left, seconds, each = self._seconds_left, self.effort.seconds, self._ledger.seconds_each
        return (
            left is None or seconds is None or work * each + min(self.final_work * each, FINAL_PART * seconds) <= left
        )

    def fit_rounds(self, places: Sequence[Sequence[int]]) -> None:
        """Take fewer rounds if there is no time for all."""
        left, wanted = self._seconds_left, self.work_of_all(places) * self._ledger.seconds_each
        if left is not None and wanted > left:
            self.rounds = max(round(self.rounds * max(left, 0) / wanted), min(LEAST_ROUNDS, self.rounds))

    def final_rounds(self, vectors: int) -> int:
        """Return how many rounds of so many vectors there is time for, if none drops out."""
        left, most = self._seconds_left, self.effort.final_rounds
        return most if left is None else min(most, int(left / (self._ledger.seconds_each * vectors)))

    def announce(self, text: str, work: float) -> None:
        """Report what runs, and how long it takes until the end if ``work`` is left."""
        seconds, left = work * self._ledger.seconds_each, self._seconds_left
        report(text, max(min(seconds, seconds if left is None else left), 0))

"""Search the fastest vector: all plans, coordinate descent from the best, evolution, and a final of all plans.

Descent alone misses changes of two places that are slower each alone; evolution alone takes long to get the easy ones.
The final compares the winner with every plan in turns, so the result is never slower than the best plan beyond noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from packager.deploy.measure.placement.proposals import Losses, Proposals
from packager.deploy.measure.placement.space import Plan, Space, Vector
from packager.deploy.measure.placement.timing import MOST_AT_ONCE, Drift, Ledger, Timer, Times
from packager.deploy.measure.statistics import CERTAINTY, center, significantly_less

PROBE_ROUNDS = 3
"""Rounds that measure how long measuring takes."""
LEAST_ROUNDS = 7
"""Minimum number of rounds of a batch when time is short."""
FINALISTS = 3
"""Vectors found by the search that are in the final beside the plans."""
REPEATED_FINALS = 4
"""Maximum number of finals: repeated while a plan within the noise of the fastest seems slower by more than CLOSE."""
CLOSE = 0.005
PARENTS = 4
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


@dataclass(frozen=True)
class Measured:
    """The alternatives of one place, the others as in ``vector``: microseconds of a run, and errors of the differences
    to the fastest."""

    place: int
    vector: Vector
    us: tuple[float, ...]
    errors: tuple[float, ...]

    def slower(self, digit: int) -> bool:
        """Whether an alternative is slower than the fastest, beyond the noise."""
        return self.us[digit] - min(self.us) > CERTAINTY * self.errors[digit]


@dataclass(frozen=True)
class Finalist:
    """A vector of the final: its plan's name, None if the search found it, and microseconds of a run."""

    plan: str | None
    vector: Vector
    us: float


@dataclass(frozen=True)
class Found:
    """The result: the winner of the final, all finalists (plans first), and what the descent measured."""

    winner: Finalist
    finalists: tuple[Finalist, ...]
    places: tuple[Measured, ...]
    vectors: int
    drift: Drift
    warnings: tuple[str, ...]


def search(
    space: Space,
    timer: Timer,
    effort: Effort,
    *,
    progress: Callable[[str], None] = lambda _: None,
    calls: Callable[[Vector], Mapping[int, int]] | None = None,
    most_at_once: int = MOST_AT_ONCE,
) -> Found:
    """Search the fastest vector of a space, measured by ``timer``; deterministic but for the times.

    ``calls`` says which places a vector's run uses, and how often: a function that it does not call has no fastest
    candidate. ``most_at_once`` vectors can be measured in one batch. Raises what ``timer`` raises.
    """
    used = calls or (lambda _: dict.fromkeys(range(len(space.places)), 1))
    run = _Search(space, Ledger(timer, space.plans[0].vector, most_at_once), effort, progress, used)
    best = run.measure_plans()
    run.descend(best)
    run.evolve()
    run.refine()
    return run.decide()


class _Search:
    def __init__(
        self,
        space: Space,
        ledger: Ledger,
        effort: Effort,
        progress: Callable[[str], None],
        calls: Callable[[Vector], Mapping[int, int]],
    ) -> None:
        self.space = space
        self.effort = effort
        self.report = progress
        self.calls = calls
        names: dict[Vector, str] = {}
        for plan in space.plans:
            names.setdefault(plan.vector, plan.name)
        self.plans = [Plan(name, vector) for vector, name in names.items()]
        self.ledger = ledger
        self.rounds = effort.rounds
        self.places: dict[int, Measured] = {}
        self.losses: Losses = {}
        self.warnings: list[str] = []

    # What is left to do, in vectors times rounds.

    @property
    def _final_work(self) -> int:
        return (len(self.plans) + FINALISTS + 1) * self.effort.final_rounds

    def _generation_work(self) -> int:
        return (1 + KEPT + self.effort.children) * self._child_rounds

    @property
    def _child_rounds(self) -> int:
        return max(self.rounds // 2, LEAST_ROUNDS)

    def _descent_work(self, first: int) -> int:
        return sum((1 + len(place.alternatives)) * self.rounds for place in self.space.places[first:])

    def _seconds_left(self) -> float | None:
        return None if self.effort.seconds is None else self.effort.seconds - self.ledger.elapsed

    def _has_time(self, work: int) -> bool:
        """Whether there is time for this, and for the final after it."""
        left = self._seconds_left()
        return left is None or (work + self._final_work) * self.ledger.seconds_each <= left

    def _announce(self, text: str, work: int) -> None:
        seconds = work * self.ledger.seconds_each
        left = self._seconds_left()
        self.report(f"{text}; about {max(min(seconds, seconds if left is None else left), 0):.0f} s left")

    def measure_plans(self) -> Vector:
        """Measure all plans; return the fastest."""
        vectors = [plan.vector for plan in self.plans]
        self.report(f"plans: {len(vectors)}, measured in turns")
        self.ledger.measure(vectors, PROBE_ROUNDS, steady=False)
        work = self._descent_work(0) + self.effort.generations * self._generation_work() + self._final_work
        left = self._seconds_left()
        wanted = (work + len(vectors) * self.rounds) * self.ledger.seconds_each
        if left is not None and wanted > left:
            self.rounds = max(min(round(self.rounds * left / wanted), self.rounds), min(LEAST_ROUNDS, self.rounds))
        if self._has_time(len(vectors) * self.rounds):
            self.ledger.measure(vectors, self.rounds)
        best = min(self.plans, key=lambda plan: self.ledger.estimate(plan.vector).ratio)
        self._announce(f"plans: {best.name} is the fastest of {len(vectors)}", work)
        return best.vector

    def descend(self, vector: Vector) -> None:
        """Change one place after the other to its fastest alternative."""
        total = len(self.space.places)
        later = self.effort.generations * self._generation_work() + self._final_work
        for index, place in enumerate(self.space.places):
            count = len(place.alternatives)
            if count < 2 or not self.calls(vector).get(index):
                continue
            if not self._has_time(count * self.rounds):
                self.warnings.append(f"time was over after {index} of {total} places: --seconds is too short")
                return
            self._announce(
                f"descent: {place.name}, {index + 1} of {total}, {count} alternatives",
                self._descent_work(index) + later,
            )
            vector = self._choose(index, vector)

    def refine(self) -> None:
        """Measure places again where the fastest vector so far has an alternative that was slower in the descent."""
        vector = self.ledger.measured()[0]
        doubtful = [index for index, measured in self.places.items() if measured.slower(vector[index])]
        for number, index in enumerate(doubtful):
            place = self.space.places[index]
            if not self.calls(vector).get(index) or not self._has_time(len(place.alternatives) * self.rounds):
                continue
            self._announce(
                f"again: {place.name}, {number + 1} of {len(doubtful)}, {len(place.alternatives)} alternatives",
                (len(doubtful) - number) * (1 + len(place.alternatives)) * self.rounds + self._final_work,
            )
            vector = self._choose(index, vector)

    def _choose(self, index: int, vector: Vector) -> Vector:
        variants = [
            (*vector[:index], d, *vector[index + 1 :]) for d in range(len(self.space.places[index].alternatives))
        ]
        times = self.ledger.measure(variants, self.rounds)
        medians = np.median(times, axis=0)
        usual, best = vector[index], int(np.argmin(medians))
        if not significantly_less(times[:, best], times[:, usual]):
            best = usual
        _, errors = center(times - times[:, best : best + 1])
        self.places[index] = Measured(index, vector, tuple(map(float, medians)), tuple(map(float, errors)))
        self.losses[index] = tuple(float(us) for us in (medians - medians.min()) / self.ledger.reference_us)
        return variants[best]

    def evolve(self) -> None:
        """Measure children of the fastest vectors, generation by generation."""
        effort = self.effort
        proposals = Proposals(self.space, self.losses, effort.seed, effort.children * effort.generations)
        for generation in range(effort.generations):
            population = self.ledger.measured()[:PARENTS]
            children = proposals.children(population, effort.children, self.ledger.knows)
            if not children:
                return
            batch = population[:KEPT] + children
            if not self._has_time((1 + len(batch)) * self._child_rounds):
                self.warnings.append(f"time was over after {generation} generations: --seconds is too short")
                return
            self._announce(
                f"evolution: generation {generation + 1} of {effort.generations}, {len(children)} children",
                (effort.generations - generation) * self._generation_work() + self._final_work,
            )
            self.ledger.measure(batch, self._child_rounds)

    def decide(self) -> Found:
        """Compare the fastest vectors with all plans in turns; the earliest within the noise of the fastest wins."""
        plans = {plan.vector: plan.name for plan in self.plans}
        best_plan = min(plans, key=lambda vector: self.ledger.estimate(vector).ratio)
        fastest = self.ledger.measured()
        found = [vector for vector in fastest[: fastest.index(best_plan)] if vector not in plans][:FINALISTS]
        if found and (simpler := self._simplified(found[0], best_plan)) not in (*plans, *found):
            found.append(simpler)
        found.sort(key=lambda vector: sum(a != b for a, b in zip(vector, best_plan, strict=True)))
        order = [*plans, *found]
        times, winner = self._final(order, len(plans))
        medians = np.median(times, axis=0)
        finalists = [Finalist(plans.get(vector), vector, float(us)) for vector, us in zip(order, medians, strict=True)]
        return Found(
            winner=finalists[winner],
            finalists=tuple(finalists),
            places=tuple(self.places[index] for index in sorted(self.places)),
            vectors=len(self.ledger.measured()),
            drift=self.ledger.drift,
            warnings=(*self.warnings, *self.ledger.drift.warnings),
        )

    def _simplified(self, vector: Vector, plan: Vector) -> Vector:
        """Return a vector without its changes of a plan that gained nothing beyond the noise in the descent."""
        digits = list(vector)
        for index, measured in self.places.items():
            gain = measured.us[plan[index]] - measured.us[digits[index]]
            if gain <= CERTAINTY * max(measured.errors[plan[index]], measured.errors[digits[index]]):
                digits[index] = plan[index]
        return tuple(digits)

    def _final(self, order: list[Vector], plans: int) -> tuple[Times, int]:
        text = f"final: {plans} plans and {len(order) - plans} others"
        times = np.empty((0, len(order)))
        for number in range(REPEATED_FINALS):
            rounds = self._final_rounds(len(order))
            if number and rounds < LEAST_ROUNDS:
                break
            rounds = max(rounds, LEAST_ROUNDS)
            self._announce(f"{text}, {rounds} rounds", rounds * len(order))
            times = np.concatenate([times, self.ledger.measure(order, rounds, steady=number == 0)])
            winner, best = _winner(times)
            if np.median(times[:, winner]) <= np.median(times[:, best]) * (1 + CLOSE):
                break
        return times, winner

    def _final_rounds(self, vectors: int) -> int:
        left = self._seconds_left()
        most = self.effort.final_rounds
        return most if left is None else min(most, int(left / (self.ledger.seconds_each * vectors)))


def _winner(times: Times) -> tuple[int, int]:
    """Return the first vector that is not slower than the fastest beyond the noise, and the fastest."""
    best = int(np.argmin(np.median(times, axis=0)))
    return next(index for index in range(best + 1) if not significantly_less(times[:, best], times[:, index])), best

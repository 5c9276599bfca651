"""Search the fastest vector: all plans, a screening, coordinate descent from the best, evolution, and a final.

Descent alone misses changes of two places that are slower each alone; evolution alone takes long to get the easy ones.
The final compares the winner with every plan in turns, so the result is never slower than the best plan beyond noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packager.deploy.measure.placement.effort import FINALISTS, KEPT, LEAST_ROUNDS, Budget, Effort
from packager.deploy.measure.placement.final import Finalist, hold_final
from packager.deploy.measure.placement.measured import Measured, simplified, without_unmeasured
from packager.deploy.measure.placement.proposals import Losses, Proposals
from packager.deploy.measure.placement.screen import MATTERS, Screened, screen
from packager.deploy.measure.placement.space import Space, Vector
from packager.deploy.measure.placement.timing import MOST_AT_ONCE, PROBE_ROUNDS, Drift, Ledger, Timer
from packager.deploy.measure.statistics import center, significantly_less
from packager.progress import report

FIRST_BATCHES = 2
"""Turns of all plans, after which slow ones are measured no further."""
SLOW = 1.25
"""How many times as long as the fastest such a plan takes."""
FEW_ROUNDS = 3
"""Profiles of a vector when time is short."""
PARENTS = 4
"""Vectors whose changes a generation tries."""


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
    calls: Callable[[Vector], Mapping[int, int]] | None = None,
    most_at_once: int = MOST_AT_ONCE,
) -> Found:
    """Search the fastest vector of a space, measured by ``timer``; deterministic but for the times.

    ``calls`` says which places a vector's run uses, and how often: a function that it does not call has no fastest
    candidate. ``most_at_once`` vectors can be measured in one batch. Raises what ``timer`` raises.
    """
    used = calls or (lambda _: dict.fromkeys(range(len(space.places)), 1))
    run = _Search(space, Ledger(timer, space.plans[0].vector, most_at_once), effort, used)
    best = run.measure_plans()
    run.descend(run.screen(best))
    run.evolve()
    run.refine()
    return run.decide()


class _Search:
    def __init__(
        self,
        space: Space,
        ledger: Ledger,
        effort: Effort,
        calls: Callable[[Vector], Mapping[int, int]],
    ) -> None:
        self.space = space
        self.effort = effort
        self.calls = calls
        self.plans: dict[Vector, str] = {}
        for plan in space.plans:
            self.plans.setdefault(plan.vector, plan.name)
        self.ledger = ledger
        self.budget = Budget(effort, ledger, len(self.plans))
        self.digits = [tuple(range(len(place.alternatives))) for place in space.places]  # that are worth whole runs
        self.order = list(range(len(space.places)))
        self.places: dict[int, Measured] = {}
        self.losses: Losses = {}
        self.warnings: list[str] = []

    def _descent_work(self, places: Sequence[int]) -> float:
        return self.budget.descent_work([self.digits[index] for index in places])

    def measure_plans(self) -> Vector:
        """Measure all plans; return the fastest."""
        vectors = list(self.plans)
        report(f"plans: {len(vectors)}, measured in turns")
        for _ in range(FIRST_BATCHES):  # the first one reads the file's pages
            self.ledger.measure(vectors, 1)
        close = [vector for vector in vectors if not self._is_slow(vector)]
        if len(close) > 1:
            self.ledger.race(close, PROBE_ROUNDS)
            close = [vector for vector in vectors if not self._is_slow(vector)]
        self.budget.fit_rounds(self.digits)
        if len(close) > 1 and self.budget.has_time(len(close) * self.budget.rounds):
            self.ledger.race(close, self.budget.rounds)
        best = min(self.plans, key=lambda vector: self.ledger.estimate(vector).ratio)
        self.budget.announce(
            f"plans: {self.plans[best]} is the fastest of {len(vectors)}", self.budget.work_of_all(self.digits)
        )
        return best

    def _is_slow(self, vector: Vector) -> bool:
        """Whether a plan is so much slower than the fastest that it need not be measured again."""
        ratios = {plan: self.ledger.estimate(plan).ratio for plan in self.plans}
        return ratios[vector] > SLOW * min(ratios.values())

    def screen(self, best: Vector) -> Vector:
        """Find the alternatives that are worth whole runs; return the vector of the fastest ones."""
        run_us = self.ledger.estimate(best).ratio * self.ledger.reference_us
        if not self.budget.has_time(len(self.plans) * LEAST_ROUNDS):
            return best
        most = max(len(place.alternatives) for place in self.space.places)
        rounds = LEAST_ROUNDS if self.budget.has_time(most * 2 * LEAST_ROUNDS) else FEW_ROUNDS
        screened = screen(self.space, self.ledger, list(self.plans), run_us, rounds)
        if not screened:
            return best
        digits = list(best)
        for index, found in screened.items():
            self.digits[index] = found.close
            digits[index] = best[index] if best[index] in found.close else found.fastest
            self._note(index, best, found, run_us)
        self.order.sort(key=lambda index: -self._spread(index, screened))
        self.budget.fit_rounds(self.digits)
        tried = sum(len(found.close) for found in screened.values() if len(found.close) > 1)
        self.budget.announce(
            f"profiles: {tried} alternatives are close to the fastest of their choices",
            self.budget.work_of_all(self.digits),
        )
        vectors = [best, *dict.fromkeys([tuple(digits), self._fastest(best, screened)])]
        if len({*vectors}) == 1 or not self.budget.has_time(len(vectors) * self.budget.rounds):
            return best
        times = self.ledger.race(list(dict.fromkeys(vectors)), self.budget.rounds)
        return min(times, key=lambda vector: float(np.median(times[vector])))

    def _fastest(self, best: Vector, screened: Mapping[int, Screened]) -> Vector:
        return tuple(screened[i].fastest if i in screened else digit for i, digit in enumerate(best))

    def _note(self, index: int, vector: Vector, found: Screened, run_us: float) -> None:
        """Remember what profiles say of a choice, in place of a descent."""
        least = min(found.us)
        us = tuple(run_us + us - least for us in found.us)
        self.places[index] = Measured(index, vector, us, found.errors)
        self.losses[index] = tuple((us - least) / run_us for us in found.us)

    def _spread(self, index: int, screened: Mapping[int, Screened]) -> float:
        """Return what is at stake between the close alternatives; functions come last, and stay in their order."""
        if index not in screened:
            return -1.0
        us = [screened[index].us[digit] for digit in screened[index].close]
        return max(us) - min(us)

    def descend(self, vector: Vector) -> None:
        """Change one place after the other to its fastest alternative."""
        later = self.budget.evolution_work(self.effort.generations) + self.budget.final_work
        for number, index in enumerate(self.order):
            if not self._is_open(index, vector):
                continue
            if not self.budget.has_time(self._descent_work([index])):
                total = len(self.order)
                self.warnings.append(f"time was over after {number} of {total} places: --seconds is too short")
                return
            self.budget.announce(
                f"descent: {self.space.places[index].name}, {number + 1} of {len(self.order)}, "
                f"{len(self.digits[index])} alternatives",
                self._descent_work(self.order[number:]) + later,
            )
            vector = self._choose(index, vector)

    def _is_open(self, index: int, vector: Vector) -> bool:
        """Whether whole runs can tell the alternatives of a place apart."""
        if len(self.digits[index]) < 2 or not self.calls(vector).get(index):
            return False
        losses = self.losses.get(index)
        return losses is None or max(losses[digit] for digit in self.digits[index]) > MATTERS

    def refine(self) -> None:
        """Measure places again where the fastest vector so far has an alternative that was slower in the descent, and
        those that only a vector of the evolution uses."""
        vector = self.ledger.measured()[0]
        doubtful = [index for index in self.order if self._is_doubtful(index, vector)]
        for number, index in enumerate(doubtful):
            if not self._is_open(index, vector) or not self.budget.has_time(self._descent_work([index])):
                continue
            self.budget.announce(
                f"again: {self.space.places[index].name}, {number + 1} of {len(doubtful)}, "
                f"{len(self.digits[index])} alternatives",
                self._descent_work(doubtful[number:]) + self.budget.final_work,
            )
            vector = self._choose(index, vector)

    def _is_doubtful(self, index: int, vector: Vector) -> bool:
        measured = self.places.get(index)
        return self._is_open(index, vector) if measured is None else measured.slower(vector[index])

    def _choose(self, index: int, vector: Vector) -> Vector:
        digits = tuple(dict.fromkeys((*self.digits[index], vector[index])))
        variants = {digit: (*vector[:index], digit, *vector[index + 1 :]) for digit in sorted(digits)}
        raced = self.ledger.race(list(variants.values()), self.budget.rounds)
        times = {digit: raced[variant] for digit, variant in variants.items()}
        best = min(times, key=lambda digit: float(np.median(times[digit])))
        usual = vector[index]
        if not significantly_less(times[best], times[usual]):
            best = usual
        self._record(index, vector, times, best)
        return variants[best]

    def _record(self, index: int, vector: Vector, times: Mapping[int, np.ndarray], best: int) -> None:
        """Remember the times of a place's alternatives; of those not tried, what profiles said of them."""
        before = self.places.get(index)
        us, errors = [], []
        for digit in range(len(self.space.places[index].alternatives)):
            if digit in times:
                common = min(len(times[digit]), len(times[best]))
                _, (error,) = center((times[digit][:common] - times[best][:common])[:, None])
                us.append(float(np.median(times[digit])))
                errors.append(float(error))
            else:
                assert before is not None  # only a screening leaves alternatives out
                us.append(float(np.median(times[best])) + before.us[digit] - min(before.us))
                errors.append(before.errors[digit])
        self.places[index] = Measured(index, vector, tuple(us), tuple(errors))
        self.losses[index] = tuple((each - min(us)) / self.ledger.reference_us for each in us)

    def evolve(self) -> None:
        """Measure children of the fastest vectors, generation by generation."""
        effort = self.effort
        proposals = Proposals(self.digits, self.losses, effort.seed, effort.children * effort.generations)
        for generation in range(effort.generations):
            population = self.ledger.measured()[:PARENTS]
            count = self.budget.children_in_time()
            children = proposals.children(population, max(count, 1), self.ledger.knows)
            if not children:
                return
            if not count:
                self.warnings.append(f"time was over after {generation} generations: --seconds is too short")
                return
            self.budget.announce(
                f"evolution: generation {generation + 1} of {effort.generations}, {len(children)} children",
                self.budget.evolution_work(effort.generations - generation) + self.budget.final_work,
            )
            self.ledger.race(population[:KEPT] + children, self.budget.child_rounds)

    def decide(self) -> Found:
        """Compare the fastest vectors with all plans in turns; the earliest within the noise of the fastest wins."""
        best_plan = min(self.plans, key=lambda vector: self.ledger.estimate(vector).ratio)
        fastest = self.ledger.measured()
        ahead = fastest[: fastest.index(best_plan)]
        faster = [without_unmeasured(vector, best_plan, self.space, self.places) for vector in ahead]
        found = [v for v in dict.fromkeys(faster) if v not in self.plans][:FINALISTS]
        if found and (simpler := simplified(found[0], best_plan, self.places)) not in (*self.plans, *found):
            found.append(simpler)
        found.sort(key=lambda vector: sum(a != b for a, b in zip(vector, best_plan, strict=True)))
        plans = {vector: name for vector, name in self.plans.items() if not self._is_slow(vector)}
        winner, finalists = hold_final(self.ledger, plans, found, self.budget.final_rounds, self.budget.announce)
        times = {finalist.vector: finalist for finalist in finalists}
        for vector, name in self.plans.items():
            us = self.ledger.estimate(vector).ratio * self.ledger.reference_us
            times.setdefault(vector, Finalist(name, vector, us))
        return Found(
            winner=winner,
            finalists=tuple(times[vector] for vector in dict.fromkeys([*self.plans, *times])),
            places=tuple(self.places[index] for index in sorted(self.places)),
            vectors=len(self.ledger.measured()),
            drift=self.ledger.drift,
            warnings=(*self.warnings, *self.ledger.drift.warnings),
        )

"""The search of a placement against exhaustive enumeration of costs in which neighbors interact."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.deploy.measure.placement.effort import Effort
from packager.deploy.measure.placement.proposals import Proposals
from packager.deploy.measure.placement.search import Found, search
from packager.deploy.measure.placement.space import Place, Plan, Space, Vector
from packager.deploy.measure.placement.timing import STEADY_ROUNDS, Batch, Ledger
from packager.progress import Event, received

Cost = Callable[[Vector], float]


@dataclass
class Simulated:
    """Times by a function: with noise of a vector's turn, and clocks that change from batch to batch."""

    cost: Cost
    noise: float = 0.0
    seed: int = 0
    clocks: Callable[[int, int], float] = lambda _batch, _round: 1.0
    batches: list[tuple[tuple[Vector, ...], int]] = field(default_factory=list)
    costs: Sequence[Sequence[float]] | None = None

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        draw = np.random.default_rng([self.seed, len(self.batches)])
        true = np.array([self.cost(vector) for vector in vectors])
        slow = np.array([[self.clocks(len(self.batches), index)] for index in range(rounds)])
        times = true * slow * (1 + self.noise * np.abs(draw.standard_normal((rounds, len(vectors)))))
        self.batches.append((tuple(vectors), rounds))
        return Batch(times, float(times.sum() * 1e-6))

    def profile(self, vector: Vector, rounds: int) -> Batch:
        """Tell nothing apart, or the parts of ``costs`` and the rest."""
        if self.costs is None:
            return Batch(np.zeros((rounds, 0)), 0.0)
        parts = [own[digit] for own, digit in zip(self.costs, vector, strict=True)]
        row = np.array([*parts, self.cost(vector) - sum(parts)])
        return Batch(np.tile(row, (rounds, 1)), float(row.sum() * rounds * 1e-6))


def space(sizes: Sequence[int], functions: int = 0) -> Space:
    """Return choices and functions of so many alternatives; the plans take the same alternative everywhere."""
    places = tuple(
        Place(f"place_{index}", tuple(f"alternative {digit}" for digit in range(size)), index >= len(sizes) - functions)
        for index, size in enumerate(sizes)
    )
    plans = (Plan(f"plan {digit}", tuple(min(digit, size - 1) for size in sizes)) for digit in range(max(sizes)))
    return Space(places, tuple(plans))


def coupled(sizes: Sequence[int], seed: int) -> Cost:
    """Return a random cost: a part of each digit, and one of each pair of neighbors."""
    draw = random.Random(seed)
    own = [[draw.uniform(5, 15) for _ in range(size)] for size in sizes]
    pairs = [
        [[draw.choice([0, 0, -4, 4]) for _ in range(second)] for _ in range(first)]
        for first, second in itertools.pairwise(sizes)
    ]

    def cost(vector: Vector) -> float:
        alone = sum(part[digit] for part, digit in zip(own, vector, strict=True))
        return 20 + alone + sum(part[a][b] for part, (a, b) in zip(pairs, itertools.pairwise(vector), strict=True))

    return cost


def optimum(where: Space, cost: Cost) -> float:
    return min(
        cost(vector) for vector in itertools.product(*(range(len(place.alternatives)) for place in where.places))
    )


def best_plan(where: Space, cost: Cost) -> float:
    return min(cost(plan.vector) for plan in where.plans)


sizes_of_places = st.lists(st.integers(1, 4), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2**20))
def test_small_spaces_are_searched_whole(sizes: list[int], seed: int) -> None:
    where, cost = space(sizes), coupled(sizes, seed)
    found = search(where, Simulated(cost), Effort())
    assert cost(found.winner.vector) == pytest.approx(optimum(where, cost), rel=0.0)


@settings(max_examples=60, deadline=None)
@given(sizes_of_places, st.integers(0, 2**20), st.sampled_from([0.0, 0.003, 0.02]))
def test_never_slower_than_the_best_plan_beyond_the_noise(sizes: list[int], seed: int, noise: float) -> None:
    where, cost = space(sizes), coupled(sizes, seed)
    found = search(where, Simulated(cost, noise, seed), Effort(seed=seed))
    assert cost(found.winner.vector) <= best_plan(where, cost) * (1 + noise)
    assert {finalist.plan for finalist in found.finalists} >= {plan.name for plan in where.plans[: len(set(sizes))]} - {
        None
    }


def test_most_large_spaces_are_searched_well() -> None:
    """Six places of four alternatives, 4,096 vectors, of which some 150 are measured; 1 % of noise."""
    sizes = [4] * 6
    found = []
    for seed in range(20):
        where, cost = space(sizes), coupled(sizes, seed)
        result = search(where, Simulated(cost, 0.01, seed), Effort(seed=seed))
        assert result.vectors < 250
        found.append(cost(result.winner.vector) / optimum(where, cost))
    assert np.median(found) < 1.01
    assert np.quantile(found, 0.9) < 1.03
    assert max(found) < 1.15


@pytest.mark.parametrize("count", [2, 5, 12])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_change_of_two_places_is_found(count: int, noise: float) -> None:
    """Wherever it is: each of the two changes is slower alone, and descent cannot find it."""
    for first in range(count - 1):
        where = space([2] * count)

        def cost(vector: Vector, first: int = first) -> float:
            pair = vector[first : first + 2]
            return 100 + 3 * sum(vector) - (16 if pair == (1, 1) else 0)

        found = search(where, Simulated(cost, noise, first), Effort(seed=first))
        expected = tuple(int(index in (first, first + 1)) for index in range(count))
        assert found.winner.vector == expected, first


def test_finalists_have_the_quartiles_of_their_turns_over_the_winner() -> None:
    """A plan that is too slow for the final has none; clocks that change do not count, since turns lie together."""
    where = space([2, 3])
    costs = {0: 10.0, 1: 10.3, 2: 40.0}
    timer = Simulated(lambda vector: costs[max(vector)], 0.002, clocks=lambda _, index: 1 + 0.01 * (index % 2))
    found = {finalist.plan: finalist for finalist in search(where, timer, Effort()).finalists}
    assert found["plan 0"].ratio == (1.0, 1.0)
    low, high = found["plan 1"].ratio or (0.0, 0.0)
    assert 1.025 < low < high < 1.035
    assert found["plan 2"].ratio is None


def test_equal_seeds_give_equal_searches() -> None:
    sizes = [3, 4, 3, 4, 3]
    where, cost = space(sizes), coupled(sizes, 5)
    first, second, other = (Simulated(cost, 0.01) for _ in range(3))
    results = [search(where, timer, Effort(seed=seed)) for timer, seed in ((first, 1), (second, 1), (other, 2))]
    assert first.batches == second.batches
    assert results[0] == results[1]
    assert first.batches != other.batches


def test_a_plan_that_is_as_fast_stays() -> None:
    """All vectors take the same time: what is earlier is simpler."""
    where = space([3, 3, 3])
    for seed in range(20):
        found = search(where, Simulated(lambda _: 50.0, 0.02, seed), Effort(seed=seed))
        assert found.winner.plan == "plan 0"


def test_changes_that_gain_nothing_are_undone() -> None:
    """Only the first place matters; whatever the evolution did to the others is noise, which may win once in 20."""
    where = space([2] * 6)
    winners = []
    for seed in range(20):
        timer = Simulated(lambda vector: 100.0 - 10 * vector[0] + 30 * (sum(vector) == 6), 0.02, seed)
        winners.append(search(where, timer, Effort(seed=seed)).winner.vector)
    assert {winner[0] for winner in winners} == {1}
    assert winners.count((1, 0, 0, 0, 0, 0)) >= 19


def test_functions_are_tried_after_choices_and_only_if_the_run_calls_them() -> None:
    where = space([2, 2, 3, 3], functions=2)

    def cost(vector: Vector) -> float:
        return 100.0 - 20 * vector[0] + 5 * vector[2 + vector[0]]

    timer = Simulated(cost)
    found = search(where, timer, Effort(generations=0), calls=lambda vector: {0: 1, 1: 1, 2 + vector[0]: 4})
    assert [measured.place for measured in found.places] == [0, 1, 3]
    assert found.winner.vector == (1, 1, 1, 0)


class TestFunctionsOfOneAlternative:
    """Each choice's second alternative calls a function of its own, faster than the first with its last candidate."""

    choices = 4

    def cost(self, vector: Vector) -> float:
        ways, candidates = vector[: self.choices], vector[self.choices :]
        return 400.0 + sum((5, 2, -6)[digit] for way, digit in zip(ways, candidates, strict=True) if way)

    def calls(self, vector: Vector) -> dict[int, int]:
        ways = enumerate(vector[: self.choices])
        return dict.fromkeys(range(self.choices), 1) | {self.choices + place: way for place, way in ways}

    def found(self, seconds: float | None = None) -> Found:
        places = space([2] * self.choices + [3] * self.choices, functions=self.choices).places
        usual = (0,) * self.choices
        plans = (Plan("first", usual + usual), Plan("second", (1,) * self.choices + usual))
        return search(
            Space(places, plans), Simulated(self.cost, 0.001), Effort(seconds=seconds, children=24), calls=self.calls
        )

    def test_what_only_the_evolution_calls_is_measured(self) -> None:
        found = self.found()
        used = [place for place in range(self.choices) if found.winner.vector[place]]
        assert used
        measured = {each.place: each for each in found.places}
        for place in used:
            times = measured[self.choices + place].us
            assert found.winner.vector[self.choices + place] == times.index(min(times)) == 2

    @pytest.mark.parametrize("milliseconds", range(40, 600, 40))
    def test_what_was_not_measured_is_as_before(self, milliseconds: int) -> None:
        found = self.found(milliseconds * 1e-3)
        measured = {each.place for each in found.places}
        called = [place for place, count in self.calls(found.winner.vector).items() if count and place >= self.choices]
        assert not [place for place in called if found.winner.vector[place] and place not in measured]


class TestTime:
    sizes = (4,) * 8

    def result(self, seconds: float | None) -> tuple[Found, float, list[str]]:
        events: list[Event] = []
        timer = Simulated(coupled(self.sizes, 3), 0.01)
        with received(events.append):
            found = search(space(self.sizes), timer, Effort(seconds=seconds))
        spent = sum(rounds * sum(map(timer.cost, vectors)) for vectors, rounds in timer.batches) * 1e-6
        return found, spent, [event.text for event in events]

    def test_what_it_takes_without_a_bound(self) -> None:
        found, spent, lines = self.result(None)
        assert not found.warnings
        assert lines[0] == "plans: 4, measured in turns"
        assert any(line == "descent: place_3, 4 of 8, 4 alternatives" for line in lines)
        assert any(line == "evolution: generation 2 of 6, 12 children" for line in lines)
        assert any(line.startswith("final: ") for line in lines)
        assert spent > 0.1

    @pytest.mark.parametrize("part", [0.7, 0.4, 0.2])
    def test_a_bound_holds(self, part: float) -> None:
        whole = self.result(None)[1]
        found, spent, _ = self.result(part * whole)
        assert spent <= 1.1 * part * whole
        assert found.winner.us <= min(finalist.us for finalist in found.finalists) * 1.02

    def test_too_little_time_still_compares_the_plans(self) -> None:
        found, _, _ = self.result(1e-6)
        assert [finalist.plan for finalist in found.finalists] == ["plan 0", "plan 1", "plan 2", "plan 3"]
        assert found.warnings == ("time was over after 0 of 8 places: --seconds is too short", *found.warnings[1:])


class TestDrift:
    where = space([3, 3, 3])
    cost = staticmethod(coupled([3, 3, 3], 1))

    def steady(self) -> tuple[Found, int]:
        """Return what is found at steady clocks, and the first batch that is long enough to tell drift from noise."""
        timer = Simulated(self.cost)
        found = search(self.where, timer, Effort())
        return found, next(number for number, (_, rounds) in enumerate(timer.batches) if rounds >= STEADY_ROUNDS)

    def test_clocks_that_slow_down_for_a_while_change_nothing(self) -> None:
        """One batch falls into it; it is measured again."""
        steady, long = self.steady()
        slow = Simulated(self.cost, clocks=lambda batch, _: 1.3 if batch == long else 1.0)
        found = search(self.where, slow, Effort())
        assert found.winner.vector == steady.winner.vector
        assert found.drift.repeated == 1
        assert found.warnings == ()

    def test_clocks_that_change_within_a_batch(self) -> None:
        _, long = self.steady()

        def clocks(batch: int, index: int) -> float:
            return 1.1 if batch == long and index > 12 else 1.0

        assert search(self.where, Simulated(self.cost, clocks=clocks), Effort()).drift.repeated == 1

    def test_clocks_that_stay_slower(self) -> None:
        """Times are those of the first clocks, and plans are compared at equal ones."""
        _, long = self.steady()
        found = search(
            self.where, Simulated(self.cost, clocks=lambda batch, _: 1.5 if batch >= long else 1.0), Effort()
        )
        assert found.winner.us == pytest.approx(self.cost(found.winner.vector))
        assert found.drift.highest_us == pytest.approx(1.5 * found.drift.lowest_us)
        assert found.drift.kept == 1

    def test_clocks_that_never_rest(self) -> None:
        found = search(
            self.where, Simulated(self.cost, clocks=lambda batch, index: 1 + (index + batch) % 30 / 30), Effort()
        )
        assert self.cost(found.winner.vector) == pytest.approx(optimum(self.where, self.cost))
        assert "which drifted each time: " in found.warnings[-1]


class TestScreening:
    """Profiles say what each choice takes; what follows from neighbors only whole runs tell."""

    def timer(self, sizes: Sequence[int], seed: int) -> tuple[Space, Simulated]:
        draw = random.Random(seed)
        own = [[draw.uniform(50, 150) for _ in range(size)] for size in sizes]
        pairs = coupled(sizes, seed)

        def cost(vector: Vector) -> float:
            return sum(part[digit] for part, digit in zip(own, vector, strict=True)) + pairs(vector) / 100

        return space(sizes), Simulated(cost, 0.01, seed, costs=own)

    def test_large_spaces_take_few_runs(self) -> None:
        """40 choices of four alternatives in 3,400 runs: descent alone would take 6,000."""
        where, timer = self.timer([4] * 40, 1)
        found = search(where, timer, Effort(generations=1))
        assert timer.costs is not None
        least = sum(map(min, timer.costs))
        assert timer.cost(found.winner.vector) < least * 1.02
        assert timer.cost(found.winner.vector) < 0.8 * best_plan(where, timer.cost)
        assert sum(rounds * len(vectors) for vectors, rounds in timer.batches) < 4000
        assert len(found.places) == 40

    def test_alternatives_that_are_close_are_measured_in_whole_runs(self) -> None:
        where = space([3, 2])
        own = [[100.0, 101.0, 150.0], [50.0, 80.0]]

        def cost(vector: Vector) -> float:  # the profile lies about the second alternative
            return 100 + own[0][vector[0]] + own[1][vector[1]] - 20 * (vector[0] == 1)

        timer = Simulated(cost, costs=own)
        found = search(where, timer, Effort())
        assert found.winner.vector == (1, 0)
        first, second = found.places
        assert first.us == pytest.approx((250.0, 231.0, 281.0))
        assert not [vector for vectors, _ in timer.batches for vector in vectors if vector == (2, 0)]
        assert second.us[1] - second.us[0] == pytest.approx(30.0)

    def test_what_is_slow_alone_and_fast_beside_its_neighbor_is_kept(self) -> None:
        where = space([2, 2, 2])

        def parts(vector: Vector) -> list[float]:
            return [200.0 + 40 * vector[0], 200 - 100 * (vector[:2] == (1, 1)) + 40 * vector[1], 100.0 + 90 * vector[2]]

        class Coupled(Simulated):
            def profile(self, vector: Vector, rounds: int) -> Batch:
                return Batch(np.tile(np.array([*parts(vector), 0.0]), (rounds, 1)), 0.0)

        assert search(where, Coupled(lambda vector: sum(parts(vector))), Effort()).winner.vector == (1, 1, 0)

    def test_short_runs_are_not_profiled(self) -> None:
        where = space([3, 2])
        timer = Simulated(lambda vector: 10.0 + vector[0], costs=[[5.0, 1.0, 2.0], [0.0, 0.0]])
        assert search(where, timer, Effort()).winner.vector[0] == 0


def test_children_are_new_and_differ_in_at_most_two_places() -> None:
    proposals = Proposals([(0, 1, 2)] * 9, {}, 0, small=10)
    parents = [(0,) * 9, (1,) * 9]
    known = {(0,) * 9, (1,) * 9}
    for _ in range(12):
        children = proposals.children(parents, 12, known.__contains__)
        assert 8 <= len(children) == len(set(children)) <= 12
        assert known.isdisjoint(children)
        known.update(children)
        for child in children:
            assert min(sum(a != b for a, b in zip(child, parent, strict=True)) for parent in parents) <= 2


def test_a_plan_must_be_a_vector_of_the_space() -> None:
    good = space([2, 2])
    with pytest.raises(ValueError, match="is no vector of the space"):
        replace(good, plans=(Plan("bad", (0, 2)),))
    with pytest.raises(ValueError, match="is no vector of the space"):
        replace(good, plans=(Plan("bad", (0,)),))
    with pytest.raises(ValueError, match="needs a plan"):
        replace(good, plans=())


def test_large_batches_are_measured_in_parts_that_each_have_the_reference() -> None:
    """As when memory has room for few sessions."""
    sizes = [4] * 5
    where, cost = space(sizes), coupled(sizes, 2)
    timer, bounded = Simulated(cost), Simulated(cost)
    found, parted = search(where, timer, Effort()), search(where, bounded, Effort(), most_at_once=4)
    assert max(len(vectors) for vectors, _ in bounded.batches) == 4
    assert {vectors[0] for vectors, _ in bounded.batches} == {where.plans[0].vector}
    assert (found.winner, found.places) == (parted.winner, parted.places)


def test_estimates_are_of_all_measurements_together() -> None:
    ledger = Ledger(Simulated(lambda vector: 10.0 + vector[0], 0.02), (0,))
    ledger.measure([(1,)], 10)
    before = ledger.estimate((1,)).error
    ledger.measure([(1,)], 200)
    assert ledger.estimate((1,)).ratio == pytest.approx(1.1, rel=0.01)
    assert ledger.estimate((1,)).error < before

"""The cheapest covers of a region, against all covers by brute force."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grouping import Predecessors, contracted_is_acyclic

from packager.placement.choices.cover_units import CoverCandidate
from packager.placement.choices.covers import Cover, cheapest_covers

Identity = frozenset[tuple[str, object]]


def identity(candidates: tuple[CoverCandidate, ...]) -> Identity:
    """What is compiled by whom: how a merging backend's operators are split is no difference."""
    parts: list[tuple[str, object]] = []
    for candidate in candidates:
        taken = candidate.operators if candidate.merges else [candidate.operators]
        parts += [(candidate.backend, part) for part in taken]
    return frozenset(parts)


def saving(backend: str | None, producer: int, reader: int) -> float:
    """Return what joining saves, some other number for each edge and backend."""
    return float((7 * producer + 3 * reader + len(backend or "")) % 5)


def saved(predecessors: Predecessors, chosen: tuple[CoverCandidate, ...]) -> float:
    """Return what joining saves in a cover."""
    group = {number: index for index, candidate in enumerate(chosen) for number in candidate.operators}
    total = 0.0
    for reader, before in enumerate(predecessors):
        for producer in set(before):
            first, second = (chosen[group[n]] if n in group else None for n in (producer, reader))
            if first is None and second is None:
                total += saving(None, producer, reader)
            elif first and second and first is not second and first.backend == second.backend and first.merges:
                total += saving(first.backend, producer, reader)
    return total


def all_covers(
    predecessors: Predecessors, candidates: list[CoverCandidate], leftover: list[float], joins: bool
) -> dict[Identity, float]:
    """Return the microseconds of each cover, by trying every set of disjoint candidates."""
    found: dict[Identity, float] = {}

    def extend(chosen: tuple[CoverCandidate, ...], rest: list[CoverCandidate]) -> None:
        if contracted_is_acyclic(predecessors, [candidate.operators for candidate in chosen]):
            covered = frozenset[int]().union(*(candidate.operators for candidate in chosen))
            left = sum(us for number, us in enumerate(leftover) if number not in covered)
            total = left + sum(candidate.microseconds for candidate in chosen)
            total -= saved(predecessors, chosen) if joins else 0.0
            found[identity(chosen)] = min(total, found.get(identity(chosen), math.inf))
        for index, candidate in enumerate(rest):
            if all(candidate.operators.isdisjoint(other.operators) for other in chosen):
                extend((*chosen, candidate), rest[index + 1 :])

    extend((), candidates)
    return found


@st.composite
def regions(draw: st.DrawFn) -> tuple[Predecessors, list[CoverCandidate], list[float]]:
    size = draw(st.integers(1, 14))
    predecessors = [
        draw(st.lists(st.integers(max(0, node - 4), node - 1), max_size=3)) if node else [] for node in range(size)
    ]
    operators = st.integers(0, size - 1)
    spans = st.builds(
        lambda first, length: frozenset(range(first, min(first + length, size))), operators, st.integers(1, 4)
    )
    scattered = st.frozensets(operators, min_size=1, max_size=4)
    candidates = draw(
        st.lists(
            st.builds(
                lambda members, backend, us: CoverCandidate(members, backend, float(us), backend == "m"),
                st.one_of(spans, scattered),
                st.sampled_from(["a", "b", "m"]),
                st.integers(0, 40),
            ),
            max_size=11,
        )
    )
    leftover = [float(us) for us in draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))]
    return predecessors, candidates, leftover


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(regions(), st.sampled_from([1, 2, 6, 1000]), st.booleans())
def test_the_cheapest_covers_are_those_of_brute_force(
    region: tuple[Predecessors, list[CoverCandidate], list[float]], count: int, joins: bool
) -> None:
    predecessors, candidates, leftover = region
    expected = all_covers(predecessors, candidates, leftover, joins)
    found = cheapest_covers(predecessors, candidates, leftover.__getitem__, count, saving if joins else None)
    assert [cover.microseconds for cover in found] == sorted(expected.values())[:count]
    assert len({identity(cover.candidates) for cover in found}) == len(found)
    for cover in found:
        assert cover.microseconds == expected[identity(cover.candidates)]
        assert contracted_is_acyclic(predecessors, [candidate.operators for candidate in cover.candidates])


CHAIN = [[], [0], [1], [2]]


def best(candidates: list[CoverCandidate], predecessors: Predecessors = CHAIN, left: float = 5.0) -> Cover:
    return cheapest_covers(predecessors, candidates, lambda _: left, 1)[0]


def test_a_candidate_that_is_dear_alone_may_be_cheap_beside_another() -> None:
    greedy = CoverCandidate(frozenset({1, 2}), "a", 4.0)
    halves = [CoverCandidate(frozenset({0, 1}), "b", 3.0), CoverCandidate(frozenset({2, 3}), "b", 3.0)]
    assert best([greedy, *halves]) == Cover(tuple(halves), 6.0)


def test_two_groups_that_read_each_other_are_no_cover() -> None:
    """Each is convex; together, 0 -> 2 and 1 -> 3 lead out of one into the other and back."""
    crossing = [CoverCandidate(frozenset({0, 3}), "a", 0.0), CoverCandidate(frozenset({1, 2}), "b", 1.0)]
    found = cheapest_covers([[], [], [0], [1]], crossing, lambda _: 5.0, 10)
    assert [cover.microseconds for cover in found] == [10.0, 11.0, 20.0]


def test_a_group_that_is_not_convex_is_no_cover() -> None:
    assert best([CoverCandidate(frozenset({0, 2}), "a", 0.0)]) == Cover((), 20.0)


def test_the_split_of_a_merging_backend_is_no_difference() -> None:
    split = [CoverCandidate(frozenset({number}), "m", 1.0, merges=True) for number in range(4)]
    whole = CoverCandidate(frozenset(range(4)), "m", 3.0, merges=True)
    found = cheapest_covers(CHAIN, [*split, whole], lambda _: 5.0, 100)
    assert len(found) == 2**4
    assert found[0] == Cover((whole,), 3.0)
    assert found[0].covered == {0, 1, 2, 3}


def test_what_can_be_joined_comes_first() -> None:
    """All candidates take as long as TVM: covers of few calls are cheaper, and cuts at small tensors."""
    single = [CoverCandidate(frozenset({number}), kind, 5.0, kind == "m") for number in range(4) for kind in "am"]
    found = cheapest_covers(CHAIN, single, lambda _: 5.0, 4, lambda _, producer, __: 1.0 + (producer != 1))
    names = [
        "".join(next((c.backend for c in cover.candidates if n in c.operators), "-") for n in range(4))
        for cover in found
    ]
    assert set(names[:2]) == {"mmmm", "----"}
    assert set(names[2:]) == {"mm--", "--mm"}
    assert [cover.microseconds for cover in found] == [15.0, 15.0, 16.0, 16.0]


@pytest.mark.parametrize(
    ("predecessors", "candidate", "message"),
    [
        ([[1], []], CoverCandidate(frozenset({0}), "a", 1.0), "not in topological order"),
        ([[], [0]], CoverCandidate(frozenset(), "a", 1.0), "is not of these 2 operators"),
        ([[], [0]], CoverCandidate(frozenset({2}), "a", 1.0), "is not of these 2 operators"),
        ([[], [0]], CoverCandidate(frozenset({1}), "a", math.nan), "nan microseconds"),
        ([[], [0]], CoverCandidate(frozenset({1}), "a", -1.0), "-1.0 microseconds"),
    ],
)
def test_what_is_no_region_is_refused(predecessors: Predecessors, candidate: CoverCandidate, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cheapest_covers(predecessors, [candidate], lambda _: 1.0, 1)


def test_no_operators_have_one_cover() -> None:
    assert cheapest_covers([], [], lambda _: 1.0, 3) == [Cover((), 0.0)]


def test_none_are_wanted() -> None:
    assert cheapest_covers(CHAIN, [], lambda _: 1.0, 0) == []


def chains(size: int, number: int) -> Predecessors:
    return [[node - number] if node >= number else [] for node in range(size)]


def grid(size: int, width: int) -> Predecessors:
    return [
        [other for other in range(n - width - 1, n - width + 2) if other >= 0] if n >= width else []
        for n in range(size)
    ]


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("predecessors", "stride"),
    [(chains(2000, 1), 1), (chains(2000, 40), 40), (grid(2000, 40), 40)],
    ids=["one chain", "forty chains that take turns", "a grid"],
)
def test_two_thousand_operators_take_seconds(predecessors: Predecessors, stride: int) -> None:
    """Three backends of overlapping candidates; a grid has far more states than are kept."""
    size = len(predecessors)
    kinds = (("a", 1.0), ("b", 0.9), ("m", 1.1))
    candidates = [
        CoverCandidate(frozenset(range(first, first + stride * length, stride)), kind, length * us, kind == "m")
        for first, length, (kind, us) in itertools.product(range(size), (1, 2, 3), kinds)
        if first + stride * (length - 1) < size
    ]
    start = time.process_time()
    found = cheapest_covers(predecessors, candidates, lambda _: 2.0, 6, lambda *_: 0.1)
    assert time.process_time() - start < 10
    assert len(found) == 6
    assert found[0].microseconds <= 0.91 * size


def test_a_cover_is_found_where_most_states_are_dead_ends() -> None:
    """Pairs of two rows that cross: any two of them are a cycle, and there are too many to keep."""
    size = 300
    predecessors = [[] if node < size // 2 else [node - size // 2] for node in range(size)]
    crossing = [CoverCandidate(frozenset({i, size - 1 - i}), "a", 1.5) for i in range(size // 2)]
    found = cheapest_covers(predecessors, crossing, lambda _: 1.0, 2)
    assert found
    assert contracted_is_acyclic(predecessors, [candidate.operators for candidate in found[0].candidates])

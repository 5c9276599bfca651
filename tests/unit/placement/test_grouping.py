"""Convex groups, against a brute-force check that the contracted graph has no cycle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.placement.grouping import Grouping

Predecessors = list[list[int]]


def contracted_is_acyclic(predecessors: Predecessors, groups: list[frozenset[int]]) -> bool:
    """Contract the groups, and look for a cycle by taking away what nothing is left before."""
    unit = {node: node for node in range(len(predecessors))}
    for group in groups:
        unit.update(dict.fromkeys(group, min(group)))
    edges = {(unit[o], unit[n]) for n, before in enumerate(predecessors) for o in before if unit[o] != unit[n]}
    left = set(unit.values())
    while left:
        free = {node for node in left if not any(target == node and source in left for source, target in edges)}
        if not free:
            return False
        left -= free
    return True


@st.composite
def graphs(draw: st.DrawFn) -> Predecessors:
    size = draw(st.integers(2, 10))
    return [draw(st.lists(st.integers(0, node - 1), max_size=3)) if node else [] for node in range(size)]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(graphs(), st.data())
def test_a_group_is_convex_when_the_contracted_graph_has_no_cycle(
    predecessors: Predecessors, data: st.DataObject
) -> None:
    grouping = Grouping(predecessors)
    for _ in range(4):
        picked = data.draw(st.sets(st.integers(0, len(predecessors) - 1), min_size=1, max_size=4))
        nodes = frozenset(member for node in picked for member in grouping.group_of(node))
        others = [group for group in grouping.groups() if not group <= nodes]
        convex = grouping.is_convex(nodes)
        assert convex == contracted_is_acyclic(predecessors, [*others, nodes])
        if convex:
            grouping.add(nodes)
    order = grouping.order()
    assert sorted(node for unit in order for node in unit) == list(range(len(predecessors)))
    place = {node: index for index, unit in enumerate(order) for node in unit}
    assert all(place[o] <= place[n] for n, before in enumerate(predecessors) for o in before)


def test_the_two_arms_of_a_diamond_cannot_close_over_what_lies_between() -> None:
    diamond = Grouping([[], [0], [0], [1, 2]])
    assert not diamond.is_convex(frozenset({0, 1, 3}))
    assert diamond.is_convex(frozenset({0, 1}))
    assert diamond.is_convex(frozenset({0, 1, 2, 3}))


def test_two_groups_cannot_wait_for_each_other() -> None:
    crossed = Grouping([[], [], [0], [1]])
    crossed.add(frozenset({0, 3}))
    assert not crossed.is_convex(frozenset({1, 2}))


def test_a_dissolved_group_is_free_again() -> None:
    chain = Grouping([[], [0], [1]])
    chain.add(frozenset({0, 1}))
    assert not chain.is_free({1})
    chain.dissolve({1})
    assert chain.is_free({0, 1, 2})
    assert chain.groups() == []


def test_depth_is_the_longest_path() -> None:
    grouping = Grouping([[], [0], [0], [1, 2], [3]])
    assert grouping.depth(frozenset({0, 1, 2, 3})) == 3
    assert grouping.depth(frozenset({1, 2})) == 1


def test_groups_that_wait_for_each_other_have_no_order() -> None:
    grouping = Grouping([[], [], [0], [1]])
    grouping.add(frozenset({0, 3}))
    grouping.add(frozenset({1, 2}))
    with pytest.raises(ValueError, match="not convex"):
        grouping.order()

"""Convex grouping of the nodes of a DAG: no path leaves a group and enters it again.

A group becomes one call, so the graph must stay acyclic when all groups are contracted to one node each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np


class Grouping:
    """Groups of nodes, which are numbered in topological order from 0. Initially there are none."""

    def __init__(self, predecessors: Sequence[Iterable[int]]) -> None:
        self.predecessors = [frozenset(nodes) for nodes in predecessors]
        self.successors: list[set[int]] = [set() for _ in self.predecessors]
        for node, before in enumerate(self.predecessors):
            for other in before:
                self.successors[other].add(node)
        self._members: dict[int, frozenset[int]] = {}  # of the groups, by their first node
        self._group: dict[int, int] = {}  # node -> first node of its group
        # Predecessors and successors of each group.
        self._around: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
        # Number of groups that start before a node and end after it: paths through them may lead to earlier nodes.
        self._spans = np.zeros(len(self.predecessors), np.int64)

    def group_of(self, node: int) -> frozenset[int]:
        """Return the nodes of a node's group, itself included."""
        return self._members[self._group[node]] if node in self._group else frozenset((node,))

    def is_free(self, nodes: Iterable[int]) -> bool:
        """Whether none of the nodes is in a group."""
        return not any(node in self._group for node in nodes)

    def is_convex(self, nodes: frozenset[int]) -> bool:
        """Whether ``nodes``, which may include whole groups, can become one group next to the existing ones."""
        units = self._units(nodes)
        entries, exits = self._surroundings(nodes, units)
        if not entries:
            return True
        for unit in units:
            self._span(unit, -1)
        found = self._reaches(exits, entries)
        for unit in units:
            self._span(unit, 1)
        return not found

    def _reaches(self, start: Iterable[int], goal: frozenset[int]) -> bool:
        """Whether a path leads from ``start`` to ``goal``, where a group is one step."""
        last = max(goal)
        pending = list(start)
        seen: set[int] = set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            first = self._group.get(node, node)
            if first > last and not self._spans[first]:
                continue
            seen |= self.group_of(node)
            if not goal.isdisjoint(self.group_of(node)):
                return True
            pending += self._around[first][1] if node in self._group else self.successors[node]
        return False

    def _units(self, nodes: Iterable[int]) -> set[int]:
        """Return the first nodes of the groups of ``nodes``."""
        found = set()
        left = set(nodes)
        while left:
            first = self._group.get(left.pop())
            if first is not None:
                found.add(first)
                left -= self._members[first]
        return found

    def _surroundings(self, nodes: frozenset[int], units: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the predecessors and the successors of ``nodes``; ``units`` are the groups among them."""
        free = nodes.difference(*(self._members[unit] for unit in units))
        before = [self._around[unit][0] for unit in units] + [self.predecessors[node] for node in free]
        after = [self._around[unit][1] for unit in units] + [frozenset(self.successors[node]) for node in free]
        return frozenset().union(*before) - nodes, frozenset().union(*after) - nodes

    def _span(self, unit: int, change: int) -> None:
        self._spans[unit + 1 : max(self._members[unit])] += change

    def add(self, nodes: frozenset[int]) -> None:
        """Merge ``nodes`` and the groups that they belong to into one group."""
        units = self._units(nodes)
        members = nodes.union(*(self._members[unit] for unit in units))
        around = self._surroundings(members, units)
        for unit in units:
            self._remove(unit)
        first = min(members)
        self._members[first] = members
        self._around[first] = around
        self._group.update(dict.fromkeys(members, first))
        self._span(first, 1)

    def dissolve(self, nodes: Iterable[int]) -> None:
        """Remove the groups of ``nodes``."""
        for unit in self._units(nodes):
            for member in self._remove(unit):
                del self._group[member]

    def _remove(self, unit: int) -> frozenset[int]:
        self._span(unit, -1)
        del self._around[unit]
        return self._members.pop(unit)

    def groups(self) -> list[frozenset[int]]:
        """Return all groups, by their first nodes."""
        return [self._members[first] for first in sorted(self._members)]

    def order(self) -> list[frozenset[int]]:
        """Return groups and single nodes in topological order, ties by their last nodes."""
        units = {self._group.get(node, node): self.group_of(node) for node in range(len(self.predecessors))}
        unit_of = {node: unit for unit, members in units.items() for node in members}
        needs = {
            unit: {unit_of[before] for node in members for before in self.predecessors[node]} - {unit}
            for unit, members in units.items()
        }
        followers: dict[int, list[int]] = {unit: [] for unit in units}
        for unit, before in needs.items():
            for other in before:
                followers[other].append(unit)
        missing = {unit: len(before) for unit, before in needs.items()}
        ready = [(max(units[unit]), unit) for unit, count in missing.items() if count == 0]
        heapq.heapify(ready)
        result = []
        while ready:
            _, unit = heapq.heappop(ready)
            result.append(units[unit])
            for follower in followers[unit]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready, (max(units[follower]), follower))
        if len(result) != len(units):
            raise ValueError("the groups are not convex")
        return result

    def depth(self, nodes: frozenset[int]) -> int:
        """Return the number of nodes on the longest path within ``nodes``."""
        longest: dict[int, int] = {}
        for node in sorted(nodes):
            longest[node] = 1 + max((longest[other] for other in self.predecessors[node] & nodes), default=0)
        return max(longest.values())

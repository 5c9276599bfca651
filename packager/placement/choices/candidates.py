"""Candidates: every match of every backend as a partition of its own, and the covers that can be made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packager.backends.base import Target
from packager.placement.choices.cover_units import CoverCandidate
from packager.placement.choices.covers import cheapest_covers
from packager.placement.choices.estimates import ROOFLINES, OperatorTimes
from packager.placement.choices.regions import Nodes
from packager.placement.outline import Group
from packager.placement.placer import Answer, Placer
from packager.placement.preparation import backend_of


@dataclass(frozen=True)
class EstimatedMatch:
    """A match that its backend takes, and the estimated microseconds of a call."""

    target: Target
    group: Group
    microseconds: float


def find_candidates(placer: Placer, targets: Sequence[Target], device: str, answer: Answer) -> list[EstimatedMatch]:
    """Return the matches that the backends of ``targets`` take as partitions of their own."""
    found = []
    for target in targets:
        outlined = [one for one in placer.fresh().outline_alone(target) if _is_large(target, one.partition.cost.flops)]
        taken = answer(target, [one.partition for one in outlined]).groups
        found += [
            EstimatedMatch(target, group, ROOFLINES[device].microseconds(one.partition.cost))
            for one in outlined
            if one.partition.name in taken
            for group in one.groups
        ]
    return found


def _is_large(target: Target, flops: int) -> bool:
    return bool(flops >= target.options.min_partition_flops)


class CoverFinder:
    """Finds covers of regions by candidates. ``groups`` collects the groups that they consist of."""

    def __init__(self, placer: Placer, candidates: Sequence[EstimatedMatch], device: str) -> None:
        self.placer = placer
        self.scratch = placer.fresh()  # in which groups of one region are joined at a time
        self.times = OperatorTimes(placer, ROOFLINES[device])
        self.known = {(candidate.target.kind, candidate.group.nodes): candidate for candidate in candidates}
        self.targets: Mapping[str, Target] = {candidate.target.kind: candidate.target for candidate in candidates}
        self.by_node: dict[int, list[EstimatedMatch]] = {}
        for candidate in candidates:
            self.by_node.setdefault(min(candidate.group.nodes), []).append(candidate)
        alone = (candidate.group for candidate in candidates if len(candidate.group.nodes) == 1)
        self.anchors = frozenset[int]().union(*(group.nodes for group in alone if group.anchored))
        self.covered = frozenset[int]().union(*(candidate.group.nodes for candidate in candidates))
        self.groups: dict[tuple[str, frozenset[int]], Group] = {}

    def cheapest(self, region: Nodes, count: int) -> list[tuple[tuple[str, Nodes], ...]]:
        """Return the cheapest covers of a region by estimates: kinds, and positions of operators in the region."""
        position = {node: place for place, node in enumerate(region)}
        inside = [
            CoverCandidate(
                frozenset(position[node] for node in candidate.group.nodes),
                candidate.target.kind,
                candidate.microseconds,
                backend_of(candidate.target).merges,
            )
            for node in region
            for candidate in self.by_node.get(node, ())
            if candidate.group.nodes <= position.keys()
        ]
        before = self.placer.grouping.predecessors
        predecessors = [[position[other] for other in before[node] if other in position] for node in region]
        covers = cheapest_covers(
            predecessors,
            inside,
            lambda place: self.times.leftover(region[place]),
            count,
            lambda _, producer, reader: self._joining(region[producer], region[reader]),
        )
        return [tuple((c.backend, tuple(sorted(c.operators))) for c in cover.candidates) for cover in covers]

    def _joining(self, producer: int, reader: int) -> float:
        """Return the microseconds saved by one call for both: two anchors never are one."""
        return 0.0 if {producer, reader} <= self.anchors else self.times.joining(producer)

    def join(self, region: Nodes, cover: Sequence[tuple[str, Nodes]]) -> list[tuple[str, Group]] | None:
        """Return the groups of a cover in a region: adjacent ones of a backend that merges are one.

        None if the region lacks one of its candidates, or if calls would depend on each other in a circle.
        """
        try:
            joined = self._join(region, cover)
        finally:
            self.scratch.grouping.dissolve(region)
        self.groups |= {(kind, group.nodes): group for kind, group in joined or ()}
        return joined and sorted(joined, key=lambda entry: min(entry[1].nodes))

    def _join(self, region: Nodes, cover: Sequence[tuple[str, Nodes]]) -> list[tuple[str, Group]] | None:
        grouping = self.scratch.grouping
        taken: dict[str, list[Group]] = {}
        for kind, places in cover:
            candidate = self.known.get((kind, frozenset(region[place] for place in places)))
            if candidate is None or not grouping.is_convex(candidate.group.nodes):
                return None
            grouping.add(candidate.group.nodes)
            taken.setdefault(kind, []).append(candidate.group)
        for kind, groups in taken.items():
            target = self.targets[kind]
            if backend_of(target).merges:
                taken[kind] = self.scratch.merge(groups, target.options.max_partition_depth)
        return [(kind, group) for kind, groups in taken.items() for group in groups]

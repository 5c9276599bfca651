"""Classes of equal regions, and the covers of each: which backend computes which of its operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packager.bundle.hashing import digest
from packager.placement.choices.candidates import CoverFinder
from packager.placement.choices.layouts import Layout
from packager.placement.choices.regions import (
    Nodes,
    RegionText,
    extend_regions,
    find_regions,
    generalize,
    operator_name,
    result_shape,
    runs_of,
)
from packager.placement.match import FlatMain
from packager.placement.outline import Group

# The operators of a region that its problem names.
SHOWN_OPERATORS = 8
# More operators of a group than these are not all in its name.
MOST_NAMED = 100


@dataclass(frozen=True)
class Cover:
    """Groups of a region's operators, by their positions in the region, with the kinds of their backends; in order.

    What is in no group is left to the code generator.
    """

    groups: tuple[tuple[str, Nodes], ...]


@dataclass(frozen=True)
class RegionClass:
    """Equal regions: what they compute as text, their bindings, their covers, and the cover of each layout.

    ``pattern`` is a hash of what they compute but for the ``extents`` of their tensors.
    """

    problem: str
    pattern: str
    extents: tuple[int, ...]
    regions: tuple[Nodes, ...]
    covers: tuple[Cover, ...]
    by_layout: tuple[int, ...]


@dataclass(frozen=True)
class Classes:
    """All classes of a model, and the groups that covers consist of, by kind and bindings."""

    classes: tuple[RegionClass, ...]
    groups: Mapping[tuple[str, frozenset[int]], Group]

    @property
    def model(self) -> str:
        """A hash of what the model's regions compute, which records of the model are known by."""
        return digest([[found.problem, len(found.regions)] for found in self.classes])


def find_classes(graph: FlatMain, layouts: Sequence[Layout], finder: CoverFinder, alternatives: int) -> Classes:
    """Return the classes of regions on which layouts differ or agree.

    Regions are equal if they compute the same, and each layout covers them alike. To the covers of the layouts are
    added the cheapest others, as long as there are fewer than ``alternatives``.
    """
    groups = {(kind, group.nodes): group for layout in layouts for kind, group in layout.groups}
    found: dict[tuple[str, tuple[Cover, ...]], list[Nodes]] = {}
    covered = finder.covered.union(*(nodes for _, nodes in groups))
    for region in extend_regions(graph, find_regions(nodes for _, nodes in groups), covered):
        text = "\n".join(RegionText(graph, region).lines())
        covers = tuple(_cover(layout.groups, region) for layout in layouts)
        found.setdefault((text, covers), []).append(region)
    classes = []
    problems: dict[str, int] = {}
    for (text, covers), regions in found.items():
        operators = [operator_name(graph.bindings[node].value) for node in regions[0]]
        shown = "+".join(operators[:SHOWN_OPERATORS]) + ("+..." if len(operators) > SHOWN_OPERATORS else "")
        problem = f"{shown} {result_shape(graph, regions[0])} {digest(text)[:12]}"
        problems[problem] = problems.get(problem, 0) + 1
        if problems[problem] > 1:  # the same operators, which a layout covers in another way
            problem += f" {problems[problem]}"
        distinct = tuple(_with_cheapest(tuple(dict.fromkeys(covers)), regions, finder, alternatives))
        pattern, extents = generalize(text)
        by_layout = tuple(map(distinct.index, covers))
        classes.append(RegionClass(problem, digest(pattern)[:12], extents, tuple(regions), distinct, by_layout))
    return Classes(tuple(classes), finder.groups | groups)


def _with_cheapest(
    covers: tuple[Cover, ...], regions: Sequence[Nodes], finder: CoverFinder, alternatives: int
) -> Iterator[Cover]:
    """Yield the covers, then the cheapest others that all regions can have."""
    yield from covers
    known = {*covers}
    for cover in finder.cheapest(regions[0], alternatives) if len(covers) < alternatives else ():
        joined = [finder.join(region, cover) for region in regions]
        if any(groups is None for groups in joined):
            continue
        made = {_cover(groups, region) for groups, region in zip(joined, regions, strict=True) if groups is not None}
        if len(made) == 1 and not made <= known:
            known |= made
            yield from made
        if len(known) >= alternatives:
            return


def _cover(groups: Iterable[tuple[str, Group]], region: Nodes) -> Cover:
    """Return the cover that groups make of a region; others are ignored."""
    position = {node: place for place, node in enumerate(region)}
    inside = [(kind, group.nodes) for kind, group in groups if min(group.nodes) in position]
    return Cover(tuple((kind, tuple(sorted(position[node] for node in nodes))) for kind, nodes in inside))


def name_covers(graph: FlatMain, found: RegionClass, generator: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each cover's name, as ``ccompiler(conv2d) | llvm(relu)``, and the kinds of its backends."""
    operators = [operator_name(graph.bindings[node].value) for node in found.regions[0]]
    named: list[tuple[str, tuple[str, ...]]] = []
    for cover in found.covers:
        covered = {place for _, places in cover.groups for place in places}
        rest = [place for place in range(len(operators)) if place not in covered]
        parts = sorted([*cover.groups, *((generator, tuple(run)) for run in runs_of(rest))], key=lambda part: part[1])
        text = " | ".join(f"{kind}({_joined(operators, places)})" for kind, places in parts)
        kinds = tuple(dict.fromkeys(kind for kind, _ in parts))
        same = sum(name.partition(" #")[0] == text for name, _ in named)
        named.append((f"{text} #{same + 1}" if same else text, kinds))
    return named


def _joined(operators: Sequence[str], places: Sequence[int]) -> str:
    shown = [operators[place] for place in places if operators[place] != "TupleGetItem"]
    if len(shown) > MOST_NAMED:  # a whole model
        shown = [*shown[:SHOWN_OPERATORS], "...", f"{len(shown)} operators"]
    return "+".join(shown or ["TupleGetItem"])

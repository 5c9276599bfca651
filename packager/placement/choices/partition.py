"""Partition a model into regions that are computed in several ways, or in the ways that were chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from packager.backends.base import Target
from packager.bundle.selection import Alternative, PlacementChoice, PlacementPlan, PlacementRecord, Rule
from packager.errors import UsageError
from packager.ir.model import PreparedModel
from packager.placement.choices.candidates import CoverFinder, find_candidates
from packager.placement.choices.classes import Classes, RegionClass, find_classes, name_covers
from packager.placement.choices.expand import expand
from packager.placement.choices.layouts import Layout, find_layouts, refusing
from packager.placement.match import FlatMain
from packager.placement.place import Compile, Placement, checked, foresee
from packager.placement.placer import Answer, Placer, Verdict
from packager.placement.preparation import needs_library


@dataclass(frozen=True)
class Choosing:
    """What decides which alternatives there are.

    ``orders`` of ``targets`` make the layouts, the first that of greedy placement. ``generator`` is the kind that
    compiles what the backends leave, ``revision`` that of the code of all of them. A region has at most
    ``alternatives``, but all that layouts make.
    """

    targets: Sequence[Target]
    orders: Sequence[Sequence[Target]]
    generator: str
    device: str
    revision: str
    alternatives: int


@dataclass(frozen=True)
class Region:
    """A class of equal regions: its problem, its source nodes, and the names and backends of its alternatives.

    The first ``layouts`` are those of orders of Targets, the very first that of the greedy placement. Those in
    ``loading`` need a library of the target machine; ``fallback`` does not, and is None if no order has such a layout.
    """

    problem: str
    pattern: str  # what it computes, but for the extents of its tensors
    extents: tuple[int, ...]
    regions: tuple[tuple[str, ...], ...]
    alternatives: tuple[Alternative, ...]
    layouts: int
    loading: frozenset[int]
    fallback: int | None

    def with_fallback(self, alternative: int) -> list[int]:
        """Return an alternative, and behind it the fallback if it needs a library."""
        if alternative not in self.loading or self.fallback is None:
            return [alternative]
        return [alternative, self.fallback]

    def fallback_among(self, alternatives: Sequence[int]) -> int | None:
        """Return the position of the fallback in a list of alternatives, None if none of them needs a library."""
        if self.loading.isdisjoint(alternatives) or self.fallback not in alternatives:
            return None
        return alternatives.index(self.fallback)


# Which alternatives to link, by number, of each class of a model with this hash. The first is the one in use.
Choose = Callable[[str, Sequence[Region]], Sequence[Sequence[int]]]


def every_alternative(_model: str, regions: Sequence[Region]) -> list[list[int]]:
    """Choose all alternatives: a trial."""
    return [list(range(len(region.alternatives))) for region in regions]


@dataclass(frozen=True)
class Choices:
    """The layouts of a model, its classes of regions, and these as others see them."""

    layouts: Sequence[Layout]
    classes: Classes
    regions: Sequence[Region]


def find_choices(prepared: PreparedModel, origin: Placer, choosing: Choosing, answer: Answer = foresee) -> Choices:
    """Return the alternatives of a model, of which ``origin`` has assigned nothing."""
    layouts = find_layouts(origin, choosing.orders, choosing.generator, answer)
    candidates = find_candidates(origin, choosing.targets, choosing.device, answer) if choosing.alternatives else []
    finder = CoverFinder(origin, candidates, choosing.device)
    classes = find_classes(origin.graph, layouts, finder, choosing.alternatives)
    loading = frozenset(target.kind for target in choosing.targets if needs_library(target))
    fallback = next((place for place, layout in enumerate(layouts) if not layout.needs(loading)), None)
    regions = [
        _describe(origin.graph, prepared, found, choosing.generator, loading, fallback) for found in classes.classes
    ]
    return Choices(layouts, classes, regions)


def partition_choices(
    prepared: PreparedModel,
    choosing: Choosing,
    compile_partitions: Compile | None,
    choose: Choose,
    rule: Rule,
) -> Placement:
    """Partition a model with the alternatives of each region that ``choose`` returns; a dry run as in ``partition``.

    What a backend gives back when it compiles is given to others, as in a greedy placement: layouts and classes are
    found again without it; the verdicts on it come last. Raises BackendError, UsageError for a trial of what is
    pending, and any error of a backend or of ``choose``.
    """
    refused: list[Verdict] = []
    answer = foresee if compile_partitions is None else checked(compile_partitions)
    origin = Placer(prepared)
    while True:
        found = find_choices(prepared, origin, choosing, refusing(refused))
        chosen = choose(found.classes.model, found.regions)
        expanded = expand(prepared, origin.graph, found.classes, chosen)
        placer = Placer(expanded.model)
        verdicts: list[Verdict] = []
        outputs = []
        for target in choosing.targets:
            groups = [group for kind, group in expanded.groups if kind == target.kind]
            output, judged = placer.assign(target, groups, answer)
            outputs.append(output)
            verdicts += judged
        given_back = [verdict for verdict in verdicts if verdict.given_back]
        if not given_back:
            pending = {out.kind for out in outputs if any(group.pending for group in out.groups.values())}
            if rule == "trial" and pending:
                raise UsageError(
                    f"--place trial measures all alternatives, and {', '.join(sorted(pending))} has pending ones",
                    hint="build without --place: packager finalize measures them",
                )
            record = _record(rule, found, chosen, choosing.revision, pending)
            return Placement(placer.model_of(outputs, record), (*verdicts, *refused))
        refused += given_back


def _describe(
    graph: FlatMain,
    model: PreparedModel,
    found: RegionClass,
    generator: str,
    loading: frozenset[str],
    fallback: int | None,
) -> Region:
    def sources(region: Sequence[int]) -> tuple[str, ...]:
        names = (graph.bindings[node].var.name for node in region)
        return tuple(dict.fromkeys(model.nodes[name] for name in names if name in model.nodes))

    alternatives = tuple(Alternative(name, kinds) for name, kinds in name_covers(graph, found, generator))
    return Region(
        problem=found.problem,
        pattern=found.pattern,
        extents=found.extents,
        regions=tuple(map(sources, found.regions)),
        alternatives=alternatives,
        layouts=1 + max(found.by_layout),
        loading=frozenset(number for number, way in enumerate(alternatives) if not loading.isdisjoint(way.backends)),
        fallback=None if fallback is None else found.by_layout[fallback],
    )


def _first(region: Region, chosen: Sequence[int], pending: Collection[str]) -> int:
    """Return the position of the first alternative that can be run."""
    ways = [region.alternatives[number] for number in chosen]
    return next((place for place, way in enumerate(ways) if not set(pending) & set(way.backends)), 0)


def _record(
    rule: Rule, found: Choices, chosen: Sequence[Sequence[int]], revision: str, pending: Collection[str]
) -> PlacementRecord:
    """Return what a bundle says of its choices; of those with code of ``pending`` backends it uses the fallbacks."""
    several = [number for number, numbers in enumerate(chosen) if len(numbers) > 1]
    choices = tuple(
        PlacementChoice(
            name=f"choice_{index}",
            problem=found.regions[number].problem,
            revision=revision,
            regions=found.regions[number].regions,
            alternatives=tuple(found.regions[number].alternatives[a] for a in chosen[number]),
            chosen=_first(found.regions[number], chosen[number], pending),
            fallback=found.regions[number].fallback_among(chosen[number]),
        )
        for index, number in enumerate(several)
    )
    classes = found.classes
    plans = [
        PlacementPlan(layout.name, tuple(chosen[n].index(classes.classes[n].by_layout[place]) for n in several))
        for place, layout in enumerate(found.layouts if rule == "trial" else ())
    ]
    return PlacementRecord(rule, classes.model, choices, tuple(plans))

"""Partition a model into regions that are computed in several ways, or in the ways that were chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from packager.backends.base import Target
from packager.bundle.selection import Alternative, PlacementChoice, PlacementPlan, PlacementRecord
from packager.ir.model import PreparedModel
from packager.ir.primitives import Partition
from packager.placement.choices.classes import Classes, RegionClass, find_classes, name_covers
from packager.placement.choices.expand import expand
from packager.placement.choices.layouts import Layout, find_layouts, refusing
from packager.placement.match import FlatMain
from packager.placement.place import Compile, Placement, checked
from packager.placement.placer import Placer, Verdict


@dataclass(frozen=True)
class Region:
    """A class of equal regions: its problem, its source nodes, and the names and backends of its alternatives.

    ``greedy`` is the number of the alternative that the order of Targets makes.
    """

    problem: str
    regions: tuple[tuple[str, ...], ...]
    alternatives: tuple[Alternative, ...]
    greedy: int


# Which alternatives to link, by number, of each class of a model with this hash.
Choose = Callable[[str, Sequence[Region]], Sequence[Sequence[int]]]


def every_alternative(_model: str, regions: Sequence[Region]) -> list[list[int]]:
    """Choose all alternatives: a trial."""
    return [list(range(len(region.alternatives))) for region in regions]


def partition_choices(
    prepared: PreparedModel,
    targets: Sequence[Target],
    generator: str,
    compile_partitions: Compile,
    revision: str,
    choose: Choose,
    rule: Literal["trial", "records"],
) -> Placement:
    """Partition a model with the alternatives of each region that ``choose`` returns.

    What a backend gives back when it compiles is given to others, as in a greedy placement: layouts and classes are
    found again without it. ``generator`` is the kind that compiles what backends leave, ``revision`` that of the code
    of all backends. Raises BackendError, and any error of a backend or of ``choose``.
    """
    refused: list[tuple[str, Partition]] = []
    origin = Placer(prepared)
    while True:
        layouts = find_layouts(origin, targets, generator, refusing(refused))
        classes = find_classes(origin.graph, layouts)
        regions = [_describe(origin.graph, prepared, found, generator) for found in classes.classes]
        chosen = choose(classes.model, regions)
        expanded = expand(prepared, origin.graph, classes, chosen)
        placer = Placer(expanded.model)
        verdicts: list[Verdict] = []
        outputs = []
        for target in targets:
            groups = [group for kind, group in expanded.groups if kind == target.kind]
            output, judged = placer.assign(target, groups, checked(compile_partitions))
            outputs.append(output)
            verdicts += judged
        given_back = [(verdict.backend, verdict.partition) for verdict in verdicts if verdict.given_back]
        if not given_back:
            record = _record(rule, classes, layouts, regions, chosen, revision)
            return Placement(placer.model_of(outputs, record), tuple(verdicts))
        refused += given_back


def _describe(graph: FlatMain, model: PreparedModel, found: RegionClass, generator: str) -> Region:
    def sources(region: Sequence[int]) -> tuple[str, ...]:
        names = (graph.bindings[node].var.name for node in region)
        return tuple(dict.fromkeys(model.nodes[name] for name in names if name in model.nodes))

    alternatives = tuple(Alternative(name, kinds) for name, kinds in name_covers(graph, found, generator))
    return Region(found.problem, tuple(map(sources, found.regions)), alternatives, found.by_layout[0])


def _record(
    rule: Literal["trial", "records"],
    classes: Classes,
    layouts: Sequence[Layout],
    regions: Sequence[Region],
    chosen: Sequence[Sequence[int]],
    revision: str,
) -> PlacementRecord:
    several = [number for number, numbers in enumerate(chosen) if len(numbers) > 1]
    choices = tuple(
        PlacementChoice(
            name=f"choice_{index}",
            problem=regions[number].problem,
            revision=revision,
            regions=regions[number].regions,
            alternatives=tuple(regions[number].alternatives[a] for a in chosen[number]),
            chosen=chosen[number].index(regions[number].greedy),
        )
        for index, number in enumerate(several)
    )
    plans = [
        PlacementPlan(layout.name, tuple(chosen[n].index(classes.classes[n].by_layout[place]) for n in several))
        for place, layout in enumerate(layouts)
    ]
    return PlacementRecord(rule, classes.model, choices, tuple(plans) if rule == "trial" else ())

"""Place a prepared model: greedily, with all alternatives to measure, or as records of measurements say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.backends.base import Context, Target
from packager.backends.registry import distribution
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.selection import Rule
from packager.bundle.tuning_records import (
    choices_of_others,
    chosen_alternatives,
    find_placement,
    measured_on,
    read_records,
)
from packager.ir.model import PreparedModel
from packager.pipeline.cache_key import package_versions
from packager.pipeline.request import MAX_ALTERNATIVES, Request
from packager.placement.choices.layouts import every_order, without_libraries
from packager.placement.choices.partition import (
    Choose,
    Choosing,
    Region,
    every_alternative,
    partition_choices,
)
from packager.placement.place import Placement, compile_with, partition
from packager.placement.preparation import needs_library
from packager.placement.shipped import find_shipped
from packager.resources import PACKAGE, folder
from packager.version import __version__


def place(
    request: Request, prepared: PreparedModel, make_context: Callable[[Target], Context] | None = None
) -> Placement:
    """Place a prepared model as the request says; without contexts to compile in it is a dry run.

    Raises BackendError, UsageError and any error of a backend.
    """
    compile_partitions = None if make_context is None else compile_with(make_context)
    if request.place == "greedy" and not any(map(needs_library, request.targets.specialized)):
        return partition(prepared, request.targets.specialized, compile_partitions)
    rule: Rule = request.place if request.place == "greedy" or request.place == "trial" else "records"  # noqa: PLR1714
    choosing = choosing_of(request, measured=request.place != "greedy")
    return partition_choices(prepared, choosing, compile_partitions, choose_for(request), rule)


@dataclass(frozen=True)
class Decision:
    """The alternative of a class of regions, by number, and what decided: a measurement, or nothing (``greedy``)."""

    alternative: int
    source: str


GREEDY = Decision(0, "greedy")


def choose_for(request: Request) -> Choose:
    """Return what chooses the alternatives that are linked: the greedy ones, all, or those that were measured.

    Where these need a library of the target machine, the alternative without it is linked too.
    """
    if request.place == "trial":
        return every_alternative

    def choose(model: str, regions: Sequence[Region]) -> list[list[int]]:
        decisions = decide(request, model, regions)
        return [region.with_fallback(d.alternative) for region, d in zip(regions, decisions, strict=True)]

    return choose


def decide(request: Request, model: str, regions: Sequence[Region]) -> list[Decision]:
    """Return the alternative of each class that a build uses, of a trial the one that it runs first.

    Raises UsageError for records that do not fit.
    """
    if isinstance(request.place, Path):
        return _recorded(request, request.place, model, regions)
    return _shipped(request, regions) if request.place == "shipped" else [GREEDY] * len(regions)


def choosing_of(request: Request, *, measured: bool) -> Choosing:
    """Return what decides which alternatives there are: all that can be measured, which records may name, or those of
    a greedy placement, with and without libraries of the target machine.
    """
    targets = request.targets.specialized
    most = request.alternatives if request.place in ("greedy", "trial") else MAX_ALTERNATIVES
    return Choosing(
        targets=targets,
        orders=list(every_order(targets)) if measured else [targets, without_libraries(targets)],
        generator=request.targets.generator.kind,
        device=request.targets.device,
        revision=revision_of(request),
        alternatives=most if measured else 0,
    )


def _recorded(request: Request, path: Path, model: str, regions: Sequence[Region]) -> list[Decision]:
    """Decide as a file of records says, and greedily where that knows no other alternative.

    Of a model that was not measured, regions are placed as equal ones of other models were.
    """
    revision = revision_of(request)
    records = measured_on(read_records([path]), request.place_device, request.place_threads)
    names = {region.problem: [way.name for way in region.alternatives] for region in regions}
    known = any(placement.model == model for placement in records.placements)
    chosen = {} if known else choices_of_others(records, revision, names)
    source = "measured in another model"
    if not chosen:
        source = "measured"
        placement = find_placement(records, model, revision)
        measured = {r.problem for r in regions if r.layouts > 1} | placement.choices.keys()
        chosen = chosen_alternatives(placement, {p: ways for p, ways in names.items() if p in measured})
    return [
        Decision(names[r.problem].index(chosen[r.problem]), source) if r.problem in chosen else GREEDY for r in regions
    ]


def _shipped(request: Request, regions: Sequence[Region]) -> list[Decision]:
    """Decide as what ships for the device says, and greedily where that knows no region like it."""
    targets = (request.targets.generator, *request.targets.specialized)
    known = find_shipped(request.place_device, request.place_threads, [target.kind for target in targets])
    decisions = []
    for region in regions:
        names = [way.name for way in region.alternatives]
        found = known.find(region.pattern, region.extents, names)
        if found is None:
            decisions.append(GREEDY)
            continue
        near, distance = found
        source = f"shipped, measured on {known.device}" + (f" for {near.problem}" if distance else "")
        decisions.append(Decision(names.index(near.chosen), source))
    return decisions


def revision_of(request: Request) -> str:
    """Return what measurements hold for: the Targets' attributes, and the code of their backends.

    That is a hash for packager's own, and the version of other people's.
    """
    parts = [f"packager {__version__}", f"tvm {package_versions()['apache-tvm']}"]
    for target in (request.targets.generator, *request.targets.specialized):
        parts.append(f"{target.to_text(paths=False)} ({distribution(target.kind) or _code_of(target.kind)})")
    return ", ".join(parts)


def _code_of(kind: str) -> str:
    """Return a hash of the code of one of packager's backends, and of its templates."""
    places = (PACKAGE / "backends" / kind, folder("templates") / kind)
    return digest([digest_of_folder(place, "*.*") for place in places if place.is_dir()])[:12]

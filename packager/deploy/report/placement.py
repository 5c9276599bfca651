"""Choices of placement and measured records, as tables of a report."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle.manifest import Manifest
from packager.bundle.tuning_records import MeasuredPlacement, Record, Records
from packager.deploy.report.tuned import Tuned


@dataclass(frozen=True)
class AlternativeView:
    """An alternative: whether the bundle uses it, whether the measurements chose it, and by how much a run is slower
    than with the fastest, if that was measured."""

    name: str
    backends: tuple[str, ...]
    libraries: tuple[str, ...]
    used: bool
    measured_best: bool
    slower_us: float | None
    error_us: float | None


@dataclass(frozen=True)
class ChoiceView:
    """A class of equal regions with its alternatives; ``fallback`` is used where a library is missing."""

    name: str
    problem: str
    regions: tuple[tuple[str, ...], ...]
    alternatives: tuple[AlternativeView, ...]
    fallback: str


@dataclass(frozen=True)
class PlanView:
    """A placement of the whole model and the microseconds of a run."""

    name: str
    us: float


@dataclass(frozen=True)
class PlacementView:
    """A measured placement; ``matches`` if it is of a model of the report. ``plans`` has the placement itself first."""

    model: str
    device: str
    threads: int
    revision: str
    matches: bool
    choices: dict[str, str]
    plans: tuple[PlanView, ...]


@dataclass(frozen=True)
class RecordsView:
    """All measurements that were given."""

    records: tuple[Record, ...]
    placements: tuple[PlacementView, ...]


def make_choices(manifest: Manifest, measured: Tuned) -> tuple[ChoiceView, ...]:
    """Return the choices of a bundle, with what the measurements of its model chose."""
    placement = manifest.placement
    best = {
        problem: alternative
        for found in measured.records.placements
        if placement is not None and found.model == placement.model
        for problem, alternative in found.choices.items()
    }
    times = {
        (problem, way.name): (way.slower_us, way.error_us)
        for problem, ways in measured.alternatives.items()
        for way in ways
    }
    return tuple(
        ChoiceView(
            choice.name,
            choice.problem,
            choice.regions,
            tuple(
                AlternativeView(
                    way.name,
                    way.backends,
                    way.libraries,
                    index == choice.chosen,
                    best.get(choice.problem) == way.name,
                    *times.get((choice.problem, way.name), (None, None)),
                )
                for index, way in enumerate(choice.alternatives)
            ),
            "" if choice.fallback is None else choice.alternatives[choice.fallback].name,
        )
        for choice in manifest.choices
    )


def make_records_view(records: Records, models: frozenset[str]) -> RecordsView | None:
    """Return the measurements, or None if there are none; ``models`` are the hashes of the report's models."""
    if not records.records and not records.placements:
        return None
    return RecordsView(records.records, tuple(_placement(item, models) for item in records.placements))


def _placement(measured: MeasuredPlacement, models: frozenset[str]) -> PlacementView:
    plans = [PlanView("fastest", measured.us), *(PlanView(name, us) for name, us in measured.plans.items())]
    return PlacementView(
        measured.model,
        measured.device,
        measured.threads,
        measured.revision,
        measured.model in models,
        dict(sorted(measured.choices.items())),
        tuple(sorted(plans, key=lambda plan: plan.us)),
    )

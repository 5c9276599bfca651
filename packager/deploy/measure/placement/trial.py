"""Measure the placement of a trial bundle: its choices and candidates as a space, its sessions as the timer."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packager.bundle.manifest import Manifest
from packager.bundle.selection import PlacementChoice
from packager.bundle.tuning_records import MeasuredPlacement
from packager.deploy.load.selection import placement_revision
from packager.deploy.measure.candidates import Tuned, record_of, tunable
from packager.deploy.measure.placement.effort import Effort
from packager.deploy.measure.placement.final import Finalist
from packager.deploy.measure.placement.journal import Journal, Subject
from packager.deploy.measure.placement.measured import Measured
from packager.deploy.measure.placement.result import AlternativeTime, ChoiceTimes, PlacementResult, PlanTime
from packager.deploy.measure.placement.search import Found, search
from packager.deploy.measure.placement.sessions import Calls, SessionTimer, missing_libraries, most_sessions
from packager.deploy.measure.placement.space import Place, Plan, Space, Vector
from packager.deploy.measure.placement.timing import Timer
from packager.deploy.measure.turns import Turns
from packager.progress import note

AS_IT_IS = "as it is"
"""Name of the plan that is the bundle's own selection, if it is none of the others."""


def measure_placement(
    turns: Turns, effort: Effort, *, threads: int, journal: Path | None
) -> tuple[PlacementResult, tuple[Tuned, ...]]:
    """Search the fastest selection of a bundle with choices, whose functions' candidates are part of it.

    ``journal`` is the file that keeps what was measured if the search is interrupted. Raises UsageError for a journal
    that does not fit, RunError.
    """
    manifest = turns.bundle.manifest
    missing = missing_libraries(turns)
    notes = tuple(f"alternatives that call a missing library are left out: {why}" for why in missing.values())
    for text in notes:
        note(text)
    space = space_of(manifest, missing)
    timer: Timer = SessionTimer(turns, space)

    @functools.cache  # a session and a run for each vector
    def calls(vector: Vector) -> Mapping[int, int]:
        return _calls(turns, space, vector)

    subject = Subject(manifest.content_sha256, turns.clock.name, threads, effort.seed)
    with ExitStack() as stack:
        kept = None if journal is None else stack.enter_context(Journal(journal, subject, timer))
        if kept is not None and kept.batches:
            note(f"{journal}: {kept.batches} measurements of an interrupted run are kept")
        try:
            found = search(space, kept or timer, effort, calls=calls, most_at_once=most_sessions(turns))
        except KeyboardInterrupt:
            if kept is not None:
                note(f"{kept.batches} measurements are kept in {journal}: the same command goes on")
            raise
    return _result(manifest, space, found, threads, notes), _tuned(turns, space, found, calls(found.winner.vector))


def space_of(manifest: Manifest, missing: Collection[Calls] = ()) -> Space:
    """Return the choices of a bundle, then its functions with candidates, those of most operations first.

    Alternatives that call one of the ``missing`` sets of libraries are left out: plans have the fallback in place of
    them, as sessions do. Plans are those of the manifest, and the bundle as it is.
    """
    choices = [_Usable.of(choice, missing) for choice in manifest.choices]
    functions = tunable(manifest)
    usual = tuple(entry.chosen for entry in functions)

    def vector(digits: Iterable[int]) -> Vector:
        return (*(usable.digit(digit) for usable, digit in zip(choices, digits, strict=True)), *usual)

    plans = [Plan(plan.name, vector(plan.digits)) for plan in manifest.placement.plans] if manifest.placement else []
    now = vector(choice.chosen for choice in manifest.choices)
    if now not in {plan.vector for plan in plans}:
        plans.append(Plan(AS_IT_IS, now))
    places = [Place(usable.choice.name, usable.names) for usable in choices]
    places += [Place(entry.symbol, entry.candidates, is_function=True) for entry in functions]
    return Space(tuple(places), tuple(plans), now)


@dataclass(frozen=True)
class _Usable:
    """A choice, and the numbers of its alternatives that can be run."""

    choice: PlacementChoice
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, choice: PlacementChoice, missing: Collection[Calls]) -> _Usable:
        ways = enumerate(choice.alternatives)
        return cls(choice, tuple(number for number, way in ways if frozenset(way.libraries) not in missing))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.choice.alternatives[number].name for number in self.numbers)

    def digit(self, alternative: int) -> int:
        """Return the digit of an alternative, or that of the fallback where it is left out."""
        if alternative not in self.numbers and self.choice.fallback is not None:
            alternative = self.choice.fallback
        return self.numbers.index(alternative)


def _calls(turns: Turns, space: Space, vector: Vector) -> Mapping[int, int]:
    """Return how often a run calls each function with candidates; choices are always made."""
    calls = turns.calls(space.selection(vector)) if any(place.is_function for place in space.places) else {}
    return {index: calls.get(place.name, 0) if place.is_function else 1 for index, place in enumerate(space.places)}


def _result(manifest: Manifest, space: Space, found: Found, threads: int, notes: tuple[str, ...]) -> PlacementResult:
    assert manifest.placement is not None
    measured = {entry.place: entry for entry in found.places}
    finalists = {finalist.vector: finalist for finalist in found.finalists}
    greedy = space.plans[0].vector
    choices = []
    for index, choice in enumerate(manifest.choices):
        names = space.places[index].alternatives
        choices.append(
            ChoiceTimes(
                name=choice.name,
                problem=choice.problem,
                regions=len(choice.regions),
                chosen=names[found.winner.vector[index]],
                greedy=names[greedy[index]],
                alternatives=_times(names, measured.get(index)),
            )
        )
    return PlacementResult(
        model=manifest.placement.model,
        revision=placement_revision(manifest),
        threads=threads,
        choices=tuple(choices),
        before_us=finalists[space.now].us,
        us=found.winner.us,
        plan=found.winner.plan,
        plans=tuple(_plan_time(manifest, space, plan, finalists[plan.vector]) for plan in space.plans),
        vectors=found.vectors,
        warnings=(*notes, *found.warnings),
    )


def _plan_time(manifest: Manifest, space: Space, plan: Plan, found: Finalist) -> PlanTime:
    return PlanTime(plan.name, found.us, _is_single(manifest, space, plan), found.ratio)


def _is_single(manifest: Manifest, space: Space, plan: Plan) -> bool:
    """Whether a plan uses one backend beside the code generator, or the generator alone."""
    generator = "cuda" if "cuda" in {target["kind"] for target in manifest.targets} else "llvm"
    names = space.selection(plan.vector)
    ways = (way for choice in manifest.choices for way in choice.alternatives if way.name == names[choice.name])
    return len({kind for way in ways for kind in way.backends} - {generator}) <= 1


def _times(names: Sequence[str], measured: Measured | None) -> tuple[AlternativeTime, ...]:
    """Return the alternatives of a choice, the fastest first, in their order if they were not measured."""
    if measured is None:
        return tuple(AlternativeTime(name, None, None) for name in names)
    order = sorted(range(len(names)), key=lambda index: measured.us[index])
    least = min(measured.us)
    return tuple(AlternativeTime(names[i], measured.us[i] - least, measured.errors[i]) for i in order)


def _tuned(turns: Turns, space: Space, found: Found, calls: Mapping[int, int]) -> tuple[Tuned, ...]:
    """Return the records of the functions that the fastest selection ``calls``."""
    manifest = turns.bundle.manifest
    entries = {entry.symbol: entry for entry in manifest.selection}
    tuned = []
    for measured in found.places:
        place = space.places[measured.place]
        if not place.is_function or not calls[measured.place]:
            continue
        entry, best = entries[place.name], found.winner.vector[measured.place]
        slower = np.array(measured.us) - measured.us[best]
        record = record_of(entry, turns.clock.name, best, slower, np.array(measured.errors), calls[measured.place])
        tuned.append(Tuned(place.name, entry.candidates[entry.chosen], calls[measured.place], record))
    return tuple(tuned)


def placement_record(result: PlacementResult, device: str) -> MeasuredPlacement:
    """Return the record of a result, for builds with ``--place`` and for ``--bind``."""
    return MeasuredPlacement(
        model=result.model,
        revision=result.revision,
        device=device,
        threads=result.threads,
        choices={choice.problem: choice.chosen for choice in result.choices},
        us=round(result.us, 3),
        plans={plan.name: round(plan.us, 3) for plan in result.plans},
    )

"""Measure the placement of a trial bundle: its choices and candidates as a space, its sessions as the timer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from packager.bundle.manifest import Manifest
from packager.bundle.tuning_records import MeasuredPlacement
from packager.deploy.load.selection import placement_revision
from packager.deploy.measure.candidates import Tuned, record_of, tunable
from packager.deploy.measure.placement.journal import Journal, Subject
from packager.deploy.measure.placement.result import AlternativeTime, ChoiceTimes, PlacementResult, PlanTime
from packager.deploy.measure.placement.search import Effort, Found, Measured, search
from packager.deploy.measure.placement.space import Place, Plan, Space, Vector
from packager.deploy.measure.placement.timing import MOST_AT_ONCE, Batch, Timer
from packager.deploy.measure.turns import Turns

AS_IT_IS = "as it is"
"""Name of the plan that is the bundle's own selection, if it is none of the others."""
GPU_ARENAS = 2**33
"""Bytes of the arenas of all sessions that are measured in turns on a GPU; on the host, half of the free memory."""


def measure_placement(
    turns: Turns, effort: Effort, *, threads: int, journal: Path | None, progress: Callable[[str], None]
) -> tuple[PlacementResult, tuple[Tuned, ...]]:
    """Search the fastest selection of a bundle with choices, whose functions' candidates are part of it.

    ``journal`` is the file that keeps what was measured if the search is interrupted. Raises UsageError for a journal
    that does not fit, RunError.
    """
    manifest = turns.bundle.manifest
    space = space_of(manifest)
    timer: Timer = _Sessions(turns, space)
    subject = Subject(manifest.content_sha256, turns.clock.name, threads, effort.seed)
    with ExitStack() as stack:
        kept = None if journal is None else stack.enter_context(Journal(journal, subject, timer))
        if kept is not None and kept.batches:
            progress(f"{journal}: {kept.batches} measurements of an interrupted run are kept")
        try:
            found = search(
                space,
                kept or timer,
                effort,
                progress=progress,
                calls=lambda vector: _calls(turns, space, vector),
                most_at_once=_most_sessions(turns),
            )
        except KeyboardInterrupt:
            if kept is not None:
                progress(f"{kept.batches} measurements are kept in {journal}: the same command goes on")
            raise
    return _result(manifest, space, found, threads), _tuned(turns, space, found)


def space_of(manifest: Manifest) -> Space:
    """Return the choices of a bundle, then its functions with candidates, those of most operations first.

    Plans are those of the manifest, and the bundle as it is.
    """
    choices = [Place(choice.name, tuple(way.name for way in choice.alternatives)) for choice in manifest.choices]
    functions = tunable(manifest)
    usual = tuple(entry.chosen for entry in functions)
    plans = [Plan(plan.name, (*plan.digits, *usual)) for plan in manifest.placement.plans] if manifest.placement else []
    now = _now(manifest)
    if now not in {plan.vector for plan in plans}:
        plans.append(Plan(AS_IT_IS, now))
    places = (*choices, *(Place(entry.symbol, entry.candidates, is_function=True) for entry in functions))
    return Space(places, tuple(plans))


def _now(manifest: Manifest) -> Vector:
    """Return the bundle's own selection."""
    return (*(choice.chosen for choice in manifest.choices), *(entry.chosen for entry in tunable(manifest)))


class _Sessions:
    """A timer of vectors by sessions of the bundle."""

    def __init__(self, turns: Turns, space: Space) -> None:
        self._turns = turns
        self._space = space

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        start = time.monotonic()
        times = self._turns.compare([self._space.selection(vector) for vector in vectors], rounds)
        return Batch(times, time.monotonic() - start)


def _most_sessions(turns: Turns) -> int:
    manifest = turns.bundle.manifest
    each = manifest.arena_bytes + sum(state.bytes for state in manifest.states) + 1
    free = GPU_ARENAS if turns.bundle.on_cuda else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(free // each, MOST_AT_ONCE)


def _calls(turns: Turns, space: Space, vector: Vector) -> Mapping[int, int]:
    """Return how often a run calls each function with candidates; choices are always made."""
    calls = turns.calls(space.selection(vector)) if any(place.is_function for place in space.places) else {}
    return {index: calls.get(place.name, 0) if place.is_function else 1 for index, place in enumerate(space.places)}


def _result(manifest: Manifest, space: Space, found: Found, threads: int) -> PlacementResult:
    assert manifest.placement is not None
    measured = {entry.place: entry for entry in found.places}
    times = {finalist.vector: finalist.us for finalist in found.finalists}
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
        before_us=times[_now(manifest)],
        us=found.winner.us,
        plan=found.winner.plan,
        plans=tuple(PlanTime(plan.name, times[plan.vector], _is_single(manifest, plan)) for plan in space.plans),
        vectors=found.vectors,
        warnings=found.warnings,
    )


def _is_single(manifest: Manifest, plan: Plan) -> bool:
    """Whether a plan uses one backend beside the code generator, or the generator alone."""
    generator = "cuda" if "cuda" in {target["kind"] for target in manifest.targets} else "llvm"
    used = (c.alternatives[digit].backends for c, digit in zip(manifest.choices, plan.vector, strict=False))
    return len({kind for kinds in used for kind in kinds} - {generator}) <= 1


def _times(names: Sequence[str], measured: Measured | None) -> tuple[AlternativeTime, ...]:
    """Return the alternatives of a choice, the fastest first, in their order if they were not measured."""
    if measured is None:
        return tuple(AlternativeTime(name, None, None) for name in names)
    order = sorted(range(len(names)), key=lambda index: measured.us[index])
    least = min(measured.us)
    return tuple(AlternativeTime(names[i], measured.us[i] - least, measured.errors[i]) for i in order)


def _tuned(turns: Turns, space: Space, found: Found) -> tuple[Tuned, ...]:
    """Return the records of the functions that the fastest selection calls."""
    manifest = turns.bundle.manifest
    entries = {entry.symbol: entry for entry in manifest.selection}
    calls = _calls(turns, space, found.winner.vector)
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

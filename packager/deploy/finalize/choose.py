"""Chooses between engines and fallbacks of a bundle: by whole runs in turns, and by how far their results differ."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packager.bundle.graph.call_graph import CallGraph
from packager.bundle.manifest import Manifest
from packager.bundle.selection import PlacementChoice
from packager.deploy.load.loader import Bundle, load
from packager.deploy.measure.random_inputs import random_inputs
from packager.deploy.measure.turns import Turns, open_turns
from packager.errors import PackagerWarning, RunError
from packager.progress import report

KIND = "tensorrt"


@dataclass(frozen=True)
class Comparison:
    """Microseconds of a run with all engines, with all fallbacks, and as chosen; medians of rounds in turns.

    ``difference`` is the largest of any output between engines and fallbacks, as a part of the output's largest value.
    ``why`` says what decided if not speed. ``chosen`` maps choices to their alternatives.
    """

    device: str
    engines_us: float | None
    fallback_us: float | None
    chosen_us: float | None
    difference: float | None
    chosen: Mapping[str, str]
    why: str = ""


def ways(manifest: Manifest, calls: CallGraph | None, pending: Collection[str]) -> list[PlacementChoice]:
    """Return the choices that have engines to use: all that they need; ``pending`` are functions whose engine lacks."""
    return [
        choice
        for choice in manifest.choices
        if _engine(choice) is not None and choice.fallback is not None and not _needs(choice, calls, pending)
    ]


def _needs(choice: PlacementChoice, calls: CallGraph | None, functions: Collection[str]) -> bool:
    """Whether a choice's engines are those of some of these functions, as far as is known."""
    if calls is None:
        return bool(functions)
    place = _engine(choice)
    made = (call for run in calls.runs for call in run.calls)
    return any(call.symbol in functions for call in made if call.branch.get(choice.name) == place)


def _engine(choice: PlacementChoice) -> int | None:
    return next((place for place, way in enumerate(choice.alternatives) if KIND in way.backends), None)


def selection_of(choices: Sequence[PlacementChoice], *, engines: bool) -> dict[str, str]:
    """Return the selection with all engines, or with all fallbacks."""
    chosen = {}
    for choice in choices:
        place = _engine(choice) if engines else choice.fallback
        assert place is not None
        chosen[choice.name] = choice.alternatives[place].name
    return chosen


def compare(
    path: Path,
    choices: Sequence[PlacementChoice],
    *,
    rounds: int,
    device: int,
    tolerance: float,
    libraries: Sequence[str | Path] | None,
) -> Comparison:
    """Measure the engines of ``choices`` against their fallbacks, and choose. Raises RunError, UsageError."""
    engines, fallbacks = (selection_of(choices, engines=which) for which in (True, False))
    with load(path, device=device, libraries=libraries) as bundle:
        report("comparing the results of engines and fallbacks")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", PackagerWarning)
            try:
                difference = _difference(bundle, engines, fallbacks)
            except RunError as error:
                return Comparison("", None, None, None, None, fallbacks, f"the engines do not run: {error.message}")
        if without := [one for one in said if issubclass(one.category, PackagerWarning)]:
            # A session then takes fallbacks, whatever is selected.
            why = f"the engines do not run: {without[0].message}"
            return Comparison("", None, None, None, None, fallbacks, why)
        with open_turns(bundle, seed=0, device=device, threads=1) as turns:
            report("measuring engines and fallbacks in turns")
            best, why = _fastest(turns, choices, engines, fallbacks, rounds), ""
            if not difference <= tolerance:
                best = dict(fallbacks)
                why = f"results differ by {difference:.2g} of the largest value, more than {tolerance:g}"
            times = np.median(turns.compare([engines, fallbacks, best], rounds), axis=0)
            name = turns.clock.name
    return Comparison(name, float(times[0]), float(times[1]), float(times[2]), difference, best, why)


def _fastest(
    turns: Turns,
    choices: Sequence[PlacementChoice],
    engines: Mapping[str, str],
    fallbacks: Mapping[str, str],
    rounds: int,
) -> dict[str, str]:
    """Return the fastest selection: the better of all engines and all fallbacks, then each choice the other way."""
    times = np.median(turns.compare([engines, fallbacks], rounds), axis=0)
    best = dict(engines if times[0] < times[1] else fallbacks)
    for choice in choices if len(choices) > 1 else ():
        other = fallbacks if best[choice.name] == engines[choice.name] else engines
        changed = best | {choice.name: other[choice.name]}
        pair = np.median(turns.compare([best, changed], rounds), axis=0)
        if pair[1] < pair[0]:
            best = changed
    return best


def _difference(bundle: Bundle, engines: Mapping[str, str], fallbacks: Mapping[str, str]) -> float:
    inputs = random_inputs(bundle.manifest, 0)
    results: list[dict[str, Any]] = []
    for selection in (engines, fallbacks):
        with bundle.session(graph="off", selection=selection) as session:
            results.append({name: np.array(value) for name, value in session.run(inputs).items()})
    return max((_relative(results[0][name], results[1][name]) for name in results[1]), default=0.0)


def _relative(one: Any, other: Any) -> float:
    """Return the largest difference as a part of the largest value; infinity where one is not a number."""
    first, second = (np.asarray(array).astype(np.float64) for array in (one, other))
    if first.size == 0:
        return 0.0
    gap = np.abs(first - second)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    gap[same] = 0.0
    if not np.isfinite(gap).all():
        return float("inf")
    return float(gap.max() / max(np.abs(second[np.isfinite(second)]).max(initial=0.0), 1e-30))

"""Sessions of a trial bundle: the timer of a search, and which alternatives this machine lacks a library for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from packager.bundle.graph.call_graph import GraphCall
from packager.bundle.graph.section import read_call_graph
from packager.bundle.manifest import Manifest
from packager.bundle.reader import read_bundle
from packager.deploy.load.abi import Status
from packager.deploy.measure.placement.space import Space, Vector
from packager.deploy.measure.placement.timing import MOST_AT_ONCE, Batch
from packager.deploy.measure.turns import Turns
from packager.errors import RunError

Calls = frozenset[str]
"""Symbols of the libraries that an alternative calls."""
GPU_ARENAS = 2**33
"""Bytes of the arenas of all sessions that are measured in turns on a GPU; on the host, half of the free memory."""


class SessionTimer:
    """A timer of vectors by sessions of the bundle."""

    def __init__(self, turns: Turns, space: Space) -> None:
        self._turns = turns
        self._space = space
        self._calls = () if turns.bundle.on_cuda else calls_of(turns.bundle.path)

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        """Measure each vector once in each of the rounds."""
        start = time.monotonic()
        times = self._turns.compare([self._space.selection(vector) for vector in vectors], rounds)
        return Batch(times, time.monotonic() - start)

    def profile(self, vector: Vector, rounds: int) -> Batch:
        """Measure what each choice takes, by a profile; on a GPU calls overlap in a run, but not in a profile."""
        start = time.monotonic()
        turns, selection = self._turns, self._space.selection(vector)
        owners = owners_of(turns.bundle.manifest, self._calls, selection)
        if not owners:
            return Batch(np.zeros((rounds, 0)), 0.0)
        times = np.zeros((rounds, len(turns.bundle.manifest.choices) + 1))
        with turns.session(selection) as session:
            session.profile(turns.inputs, outputs=turns.outputs)
            for row in times:
                steps = session.profile(turns.inputs, outputs=turns.outputs)
                repeated, rest = divmod(len(steps), len(owners))  # several times: micro-batches
                if rest:
                    return Batch(np.zeros((rounds, 0)), time.monotonic() - start)
                np.add.at(row, owners * repeated, [step.duration_ns / 1e3 for step in steps])
        return Batch(times, time.monotonic() - start)


def calls_of(path: Path) -> tuple[GraphCall, ...]:
    """Return the calls of a bundle's only run; none if there are several runs, or the data decides about calls."""
    bundle = read_bundle(path)
    graph = read_call_graph(bundle)
    choices = {choice.name for choice in bundle.manifest.choices}
    calls = graph.runs[0].calls if graph is not None and len(graph.runs) == 1 else ()
    return calls if all(call.branch.keys() <= choices for call in calls) else ()


def owners_of(manifest: Manifest, calls: Sequence[GraphCall], selection: Mapping[str, str]) -> list[int]:
    """Return the choice of each call of a run with this selection, -1 for those outside of choices."""
    numbers = {choice.name: number for number, choice in enumerate(manifest.choices)}
    digits = {c.name: [way.name for way in c.alternatives].index(selection[c.name]) for c in manifest.choices}
    made = (call for call in calls if call.branch.items() <= digits.items())
    return [next((numbers[name] for name in call.branch), -1) for call in made]


def most_sessions(turns: Turns) -> int:
    """Return how many sessions fit into memory at once, at most MOST_AT_ONCE."""
    manifest = turns.bundle.manifest
    each = manifest.arena_bytes + sum(state.bytes for state in manifest.states) + 1
    free = GPU_ARENAS if turns.bundle.on_cuda else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(free // each, MOST_AT_ONCE)


def missing_libraries(turns: Turns) -> dict[Calls, str]:
    """Return the sets of libraries that alternatives call and a session cannot have here, with the reason of each.

    Those of choices without a fallback are not among them: no session can do without. Raises RunError for what else
    keeps a session from being made.
    """
    choices = [choice for choice in turns.bundle.manifest.choices if choice.fallback is not None]
    fallbacks = {choice.name: choice.alternatives[choice.fallback or 0].name for choice in choices}
    ways = {frozenset(way.libraries): {choice.name: way.name} for choice in choices for way in choice.alternatives}
    missing: dict[Calls, str] = {}
    for calls, selection in ways.items():
        try:
            with turns.session(fallbacks | selection if calls else fallbacks):
                pass
        except RunError as error:
            if not calls or error.status != Status.LIBRARY:
                raise
            missing[calls] = error.message.removeprefix("the selection needs a library: ")
    return missing

"""Tune the candidate kernels of a bundle's primitive functions, one function after the other.

Greedy coordinate descent: those with most FLOPs first, keeping earlier winners. A candidate wins only if its gain
exceeds the noise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packager.bundle.manifest import Manifest
from packager.bundle.selection import Selection
from packager.bundle.tuning_records import Record, Timing
from packager.deploy.measure.statistics import CERTAINTY, center
from packager.deploy.measure.turns import Turns
from packager.progress import counted, note


@dataclass(frozen=True)
class Tuned:
    """The measurements of one function: its record, its calls per run, and the candidate used before."""

    symbol: str
    before: str
    calls: int
    record: Record

    @property
    def gain_us(self) -> float:
        """Microseconds saved per run relative to the candidate used before."""
        slower = {timing.candidate: timing.slower_us for timing in self.record.timings}
        return self.calls * (slower[self.before] - slower[self.record.chosen])


def tunable(manifest: Manifest) -> list[Selection]:
    """Return the functions with several candidates, those of most operations first."""
    work = {item.symbol: item.flops * item.calls for _, item in manifest.primitives()}
    entries = [entry for entry in manifest.selection if len(entry.candidates) > 1]
    return sorted(entries, key=lambda entry: -work[entry.symbol])


def tune_candidates(turns: Turns, rounds: int, seconds: float | None) -> tuple[Tuned, ...]:
    """Measure each function's candidates, with the others as chosen before; after ``seconds`` the rest stay."""
    start = time.monotonic()
    calls = {item.symbol: item.calls for _, item in turns.bundle.manifest.primitives()}
    chosen: dict[str, str] = {}
    tuned: list[Tuned] = []
    entries = tunable(turns.bundle.manifest)
    with counted("measuring the candidates of function", len(entries)) as steps:
        for entry in entries:
            if tuned and seconds is not None and (time.monotonic() - start) * (1 + 1 / len(tuned)) > seconds:
                note(f"time is over: {len(entries) - len(tuned)} functions stay as they are")
                break
            with steps.step():
                record = _measure(turns, entry, chosen, calls[entry.symbol], rounds)
            chosen[entry.symbol] = record.chosen
            tuned.append(Tuned(entry.symbol, entry.candidates[entry.chosen], calls[entry.symbol], record))
    return tuple(tuned)


def _measure(turns: Turns, entry: Selection, chosen: Mapping[str, str], calls: int, rounds: int) -> Record:
    """Measure the candidates of one function, with the others as ``chosen``."""
    times = turns.compare([{**chosen, entry.symbol: candidate} for candidate in entry.candidates], rounds)
    differences, errors = center(times - times[:, entry.chosen : entry.chosen + 1])
    best = int(np.argmin(np.where(differences < -CERTAINTY * errors, differences, 0.0)))
    if differences[best] >= 0:
        best = entry.chosen
    return record_of(entry, turns.clock.name, best, *center(times - times[:, best : best + 1]), calls)


def record_of(
    entry: Selection,
    device: str,
    best: int,
    differences: NDArray[np.float64],
    errors: NDArray[np.float64],
    calls: int,
) -> Record:
    """Return the record of a function whose candidates take so many microseconds more a run than the ``best``."""
    slower = np.maximum(differences, 0.0) / calls
    order = sorted(range(len(slower)), key=lambda index: (index != best, slower[index]))
    timings = (Timing(entry.candidates[i], float(slower[i]), float(errors[i] / calls)) for i in order)
    return Record(entry.problem, entry.revision, device, tuple(timings))

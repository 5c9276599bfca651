"""``packager tune``: measures the candidate kernels of a bundle's primitive functions on the machine that runs it.

Measures whole runs, as CUDA graphs on a GPU, so that caches are in their real state. Greedy coordinate descent: tunes
one function at a time, those with most FLOPs first, keeping earlier winners. Sessions that differ in one candidate are
interleaved, so that other load affects all equally; a candidate wins only if its gain exceeds the noise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packager.bundle.manifest import Selection
from packager.bundle.tuning_records import Record, Records, Timing, make_records
from packager.deploy.load.loader import Bundle, load
from packager.deploy.measure.bench import host_outputs
from packager.deploy.measure.bench_cuda import device_tensors
from packager.deploy.measure.cuda_memory import Device
from packager.deploy.measure.random_inputs import random_inputs
from packager.deploy.verify.machine import this_machine
from packager.errors import UsageError

ROUND_MS = 2.0
"""Minimum duration of a session's turn."""
SHORTEST_US = 1.0
"""Lower bound on the duration of a run, for sizing turns: clocks do not resolve shorter ones."""
CERTAINTY = 3.0
"""Threshold of significance, in standard errors of the difference."""


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


@dataclass(frozen=True)
class TuneResult:
    """Microseconds of a run before and after, interleaved at the end, and the measurements of each function."""

    path: str
    device: str
    before_us: float
    after_us: float
    functions: tuple[Tuned, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager tune --json``."""
        return {"schema_version": 1} | asdict(self)

    @property
    def records(self) -> Records:
        """Return the tuning records for later builds."""
        return make_records(function.record for function in self.functions)

    @property
    def selection(self) -> dict[str, str]:
        """Return symbol -> chosen candidate."""
        return {function.symbol: function.record.chosen for function in self.functions}


class Clock(Protocol):
    """Measures runs on a device; ``name`` is the device in records."""

    name: str

    def time(self, runs: Sequence[Callable[[], None]], repeats: int) -> list[float]:
        """Call each of ``runs`` ``repeats`` times in a row; return microseconds per call of each."""


def tune(
    path: str | Path,
    *,
    rounds: int = 30,
    seed: int = 0,
    threads: int = 0,
    device: int = 0,
    progress: Callable[[str], None] | None = None,
) -> TuneResult:
    """Measure all candidates of a bundle with random inputs and symbolic dims at their maxima.

    Each candidate gets ``rounds`` turns of at least ``ROUND_MS``. ``progress`` is called with a line per function.
    Raises UsageError if no function has several candidates; BundleError, RunError.
    """
    if rounds < 3:
        raise UsageError(f"rounds must be at least 3, is {rounds}")
    with load(path, threads=threads, device=device) as bundle, ExitStack() as stack:
        entries = [entry for entry in bundle.manifest.selection if len(entry.candidates) > 1]
        if not entries:
            raise UsageError(
                f"{path} has one candidate per function: there is nothing to tune",
                hint="build it with a Target that includes several, such as 'cutlass -candidates=3'",
            )
        inputs = random_inputs(bundle.manifest, seed)
        tuner = _make_tuner(bundle, inputs, rounds, device, stack)
        work = {item.symbol: item for _, item in bundle.manifest.primitives()}
        chosen: dict[str, str] = {}
        tuned = []
        for entry in sorted(entries, key=lambda entry: -work[entry.symbol].flops * work[entry.symbol].calls):
            record = tuner.measure(entry, chosen, work[entry.symbol].calls)
            chosen[entry.symbol] = record.chosen
            tuned.append(Tuned(entry.symbol, entry.candidates[entry.chosen], work[entry.symbol].calls, record))
            if progress is not None:
                progress(f"{entry.symbol}: {record.chosen}")
        before, after = tuner.compare([{}, chosen]).mean(axis=0)
        return TuneResult(str(path), tuner.clock.name, float(before), float(after), tuple(tuned))


@dataclass(frozen=True)
class _Tuner:
    bundle: Bundle
    clock: Clock
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    rounds: int
    device: int
    stream: int | None

    def measure(self, entry: Selection, chosen: Mapping[str, str], calls: int) -> Record:
        """Measure the candidates of one function, with the others as ``chosen``."""
        times = self.compare([{**chosen, entry.symbol: candidate} for candidate in entry.candidates])
        usual = times[:, entry.chosen : entry.chosen + 1]
        differences, errors = _center(times - usual)
        best = int(np.argmin(np.where(differences < -CERTAINTY * errors, differences, 0.0)))
        if differences[best] >= 0:
            best = entry.chosen
        differences, errors = _center(times - times[:, best : best + 1])
        slower = np.maximum(differences, 0.0) / calls
        order = sorted(range(len(slower)), key=lambda index: (index != best, slower[index]))
        timings = [Timing(entry.candidates[i], float(slower[i]), float(errors[i] / calls)) for i in order]
        return Record(entry.problem, entry.revision, self.clock.name, tuple(timings))

    def compare(self, selections: Sequence[Mapping[str, str]]) -> NDArray[np.float64]:
        """Return microseconds per run, shape [rounds, selections]."""
        times = np.empty((self.rounds, len(selections)))
        with ExitStack() as stack:
            graph = "on" if self.bundle.on_cuda else "auto"
            sessions = [
                stack.enter_context(self.bundle.session(device=self.device, graph=graph, selection=selection))
                for selection in selections
            ]
            runs = [session.bind(self.inputs, self.outputs, self.stream) for session in sessions]
            for run in runs:  # the first captures
                run()
                run()
            fastest = max(min(self.clock.time(runs, 3)), SHORTEST_US)
            repeats = max(1, math.ceil(ROUND_MS * 1e3 / fastest))
            for index in range(self.rounds):
                turn = [(index + place) % len(runs) for place in range(len(runs))]
                times[index, turn] = self.clock.time([runs[place] for place in turn], repeats)
        return times


def _center(differences: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median of each column, and its standard error from the median absolute deviation."""
    medians = np.median(differences, axis=0)
    deviations = 1.4826 * np.median(np.abs(differences - medians), axis=0)
    return medians, 1.2533 * deviations / math.sqrt(len(differences))


class _HostClock:
    """Median over calls, to exclude those interrupted by other work."""

    def __init__(self) -> None:
        self.name = this_machine(gpus=False).cpu or "unknown CPU"

    def time(self, runs: Sequence[Callable[[], None]], repeats: int) -> list[float]:
        medians = []
        for run in runs:
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
            medians.append(statistics.median(times) * 1e6)
        return medians


class _GpuClock:
    """Time between two events on a stream; if the host is slower than the GPU, it is the host's time for all alike."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._device = device
        self._events: list[Any] = []

    def time(self, runs: Sequence[Callable[[], None]], repeats: int) -> list[float]:
        missing = len(runs) + 1 - len(self._events)
        self._events += self._device.events(max(missing, 0))
        self._device.record(self._events[0])
        for event, run in zip(self._events[1:], runs, strict=False):
            for _ in range(repeats):
                run()
            self._device.record(event)
        self._device.synchronize()
        pairs = zip(self._events, self._events[1 : len(runs) + 1], strict=False)
        return [self._device.elapsed_ms(*pair) * 1e3 / repeats for pair in pairs]


def _make_tuner(
    bundle: Bundle, inputs: Mapping[str, NDArray[Any]], rounds: int, index: int, stack: ExitStack
) -> _Tuner:
    if not bundle.on_cuda:
        with bundle.session() as session:
            outputs = host_outputs(bundle, session, inputs)
        return _Tuner(bundle, _HostClock(), inputs, outputs, rounds, index, None)
    device = stack.enter_context(Device(index))
    with bundle.session(device=index) as session:
        given, results = device_tensors(device, bundle.manifest, session, inputs)
    return _Tuner(bundle, _GpuClock(device), given, results, rounds, index, device.stream)

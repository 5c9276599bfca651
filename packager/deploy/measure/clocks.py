"""Clocks that time runs in turns: of the host, and of a GPU by events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from packager.deploy.measure.cuda_memory import Device
from packager.deploy.verify.machine import this_machine


class Clock(Protocol):
    """Measures runs on a device; ``name`` is the device in records."""

    name: str

    def time(self, runs: Sequence[Callable[[], None]], repeats: int) -> list[float]:
        """Call each of ``runs`` ``repeats`` times in a row; return microseconds per call of each."""


class HostClock:
    """Median over calls, to exclude those interrupted by other work.

    Runs of one thread are measured by its processor time: on a busy machine, time spent waiting for a processor makes
    wall times of 50 ms vary by 9 %, and not that.
    """

    def __init__(self, threads: int) -> None:
        self._now = time.thread_time if threads == 1 else time.perf_counter
        self.name = this_machine(gpus=False).cpu or "unknown CPU"

    def time(self, runs: Sequence[Callable[[], None]], repeats: int) -> list[float]:
        medians = []
        for run in runs:
            times = []
            for _ in range(repeats):
                start = self._now()
                run()
                times.append(self._now() - start)
            medians.append(statistics.median(times) * 1e6)
        return medians


class GpuClock:
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

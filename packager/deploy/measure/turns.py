"""Sessions of one bundle that differ in their selections, measured in turns.

Measures whole runs, as CUDA graphs on a GPU, so that caches are in their real state. Sessions are interleaved, so that
other load affects all equally, and in another order in each round: what one leaves of clocks and caches must not always
count for the same other one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.deploy.load.loader import Bundle, Session
from packager.deploy.measure.bench import host_outputs
from packager.deploy.measure.bench_cuda import device_tensors
from packager.deploy.measure.clocks import Clock, GpuClock, HostClock
from packager.deploy.measure.cuda_memory import Device
from packager.deploy.measure.random_inputs import random_inputs

TURN_MS = 2.0
"""Minimum duration of a session's turn."""
SHORTEST_US = 1.0
"""Lower bound on the duration of a run, for sizing turns: clocks do not resolve shorter ones."""
SESSION_ROUNDS = 20
"""Rounds after which sessions are made anew: where an arena is in memory must not count as a property of its code."""


@dataclass(frozen=True)
class Turns:
    """A loaded bundle, with tensors for its runs and a clock; use ``open_turns``."""

    bundle: Bundle
    clock: Clock
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    device: int
    stream: int | None

    def compare(self, selections: Sequence[Mapping[str, str]], rounds: int) -> NDArray[np.float64]:
        """Return microseconds per run, shape [rounds, selections]. Raises RunError, UsageError for unknown names."""
        parts = [min(SESSION_ROUNDS, rounds - first) for first in range(0, rounds, SESSION_ROUNDS)]
        return np.concatenate([self._compare(selections, part) for part in parts])

    def _compare(self, selections: Sequence[Mapping[str, str]], rounds: int) -> NDArray[np.float64]:
        times = np.empty((rounds, len(selections)))
        with ExitStack() as stack:
            sessions = [stack.enter_context(self.session(selection)) for selection in selections]
            runs = [session.bind(self.inputs, self.outputs, self.stream) for session in sessions]
            first = min(self.clock.time(runs, 1))  # the first touches the arena, or captures
            if first < 10 * TURN_MS * 1e3:  # else a turn is one run in any case, and measuring more takes long
                self.clock.time(runs, 1)
                first = min(self.clock.time(runs, 3))
            fastest = max(first, SHORTEST_US)
            repeats = max(1, math.ceil(TURN_MS * 1e3 / fastest))
            order = np.random.default_rng(rounds)
            for index in range(rounds):
                turn = order.permutation(len(runs))
                times[index, turn] = self.clock.time([runs[place] for place in turn], repeats)
        return times

    def calls(self, selection: Mapping[str, str]) -> Counter[str]:
        """Return how often a run with this selection calls each primitive function."""
        with self.session(selection) as session:
            return Counter(step.symbol for step in session.profile(self.inputs, outputs=self.outputs))

    def session(self, selection: Mapping[str, str]) -> Session:
        """Return a new session of the bundle with a selection. Raises RunError, UsageError for unknown names."""
        graph = "on" if self.bundle.on_cuda else "auto"
        return self.bundle.session(device=self.device, graph=graph, selection=selection)


@contextmanager
def open_turns(bundle: Bundle, *, seed: int, device: int, threads: int) -> Iterator[Turns]:
    """Yield the turns of a bundle on random inputs, symbolic dims at their maxima; in device memory for a GPU.

    ``threads`` is the number of threads that the bundle was loaded with.
    """
    inputs: Mapping[str, NDArray[Any]] = random_inputs(bundle.manifest, seed)
    with ExitStack() as stack:
        if not bundle.on_cuda:
            with bundle.session() as session:
                outputs = host_outputs(bundle, session, inputs)
            yield Turns(bundle, HostClock(threads), inputs, outputs, device, None)
            return
        gpu = stack.enter_context(Device(device))
        with bundle.session(device=device) as session:
            given, results = device_tensors(gpu, bundle.manifest, session, inputs)
        yield Turns(bundle, GpuClock(gpu), given, results, device, gpu.stream)

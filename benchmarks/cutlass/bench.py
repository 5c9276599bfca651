"""Check kernels on a GPU, and time them beside torch in one process."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.cutlass.launch import Driver, Filled
from benchmarks.cutlass.problems import Problem

# Sets of operands that calls take in turns: together they are larger than the L2 cache, as a model's are.
ROTATED_BYTES = 192 << 20
MOST_SETS, FEWEST_SETS = 128, 3
# A graph has at least so many calls, so that its own start and end do not count.
FEWEST_CALLS = 12

Call = Callable[[], torch.Tensor]
Step = tuple[str, ctypes.Structure]  # a kernel, and its problem
Work = Callable[[], list[torch.Tensor]]


@dataclass
class Case:
    """A problem with several sets of operands, each with a structure for our kernels and an output.

    ``want`` is the result of the first set; ``result`` returns what a kernel of ours has written for it, seen as
    ``want`` is. ``errors`` compares the two: a result is right if no error is above its limit. ``rivals`` are torch's
    ways to solve it, by name: for each set a call. Those of ``judged`` are compared with ``want``, too. ``tensors``
    have to live as long as the case. ``steps`` returns the launches of a route, by its name, for a set of operands,
    where these are not one.
    """

    structures: Sequence[ctypes.Structure]
    outputs: Sequence[torch.Tensor]
    want: torch.Tensor
    result: Call
    errors: Callable[[torch.Tensor, torch.Tensor], Sequence[float]]
    limits: Sequence[float]
    rivals: Mapping[str, list[Call]]
    judged: bool = True
    tensors: Sequence[Any] = field(default_factory=list)
    steps: Callable[[str, int], list[Step]] | None = None

    def steps_of(self, kernel: str) -> list[list[Step]]:
        """Return what is launched for each set of operands, in order."""
        if self.steps is None:
            return [[(kernel, structure)] for structure in self.structures]
        return [self.steps(kernel, index) for index in range(len(self.outputs))]

    def errors_of(self, got: torch.Tensor) -> list[float]:
        """Return the errors of a result."""
        return [float(f"{value:.3g}") for value in self.errors(got, self.want)]

    def is_right(self, errors: Sequence[float]) -> bool:
        """Return whether no error is too large; NaN is."""
        return all(value <= limit for value, limit in zip(errors, self.limits, strict=True))


def count_sets(problem: Problem) -> int:
    """Return how many sets of operands exceed the cache."""
    return min(MOST_SETS, max(FEWEST_SETS, math.ceil(ROTATED_BYTES / problem.nbytes)))


class Bench:
    """The kernels of a folder and how they are timed."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes torch's context current
        torch.manual_seed(0)
        self._driver = Driver(folder, torch.cuda.get_device_properties(0).multi_processor_count)
        self._rounds = rounds

    def measure(self, case: Case, kernels: Sequence[str], *, timed: bool) -> dict[str, Any]:
        """Return errors, and times in microseconds, of our kernels, the first of which is the choice, and of torch."""
        ours: dict[str, dict[str, Any]] = {}
        works: dict[str, Work] = {}
        for kernel in kernels:
            filled = [
                [(name, self._driver.fill(name, given)) for name, given in each] for each in case.steps_of(kernel)
            ]
            if any(one is None for each in filled for _, one in each):
                ours[kernel] = {"refused": True}
                continue
            launches = [[(name, one) for name, one in each if one is not None] for each in filled]
            ours[kernel] = {"errors": self._errors(case, self._work_of(launches[0]))}
            works[kernel] = self._work_of([one for each in launches for one in each])
        theirs = {rival: _try(calls[0], case) for rival, calls in case.rivals.items()} if timed else {}
        if timed:
            works |= {rival: _all(case.rivals[rival]) for rival in theirs if "unavailable" not in theirs[rival]}
            repeats = -(-FEWEST_CALLS // len(case.outputs))
            graphs = {name: capture(work, repeats) for name, work in works.items()}
            replays = {name: graph for name, (graph, _) in graphs.items()}
            for name, times in self._time(replays, repeats * len(case.outputs)).items():
                (ours if name in ours else theirs)[name]["us"] = spread(times)
                if name in ours:  # where launches overlap
                    again = self._errors(case, replays[name].replay)
                    ours[name]["errors"] = _worse(ours[name]["errors"], again)
        right = all(case.is_right(each["errors"]) for each in ours.values() if "errors" in each)
        return {"choice": kernels[0], "ok": right and "errors" in ours[kernels[0]], "ours": ours, "torch": theirs}

    def _errors(self, case: Case, run: Callable[[], object]) -> list[float]:
        """Run over memory that holds NaN, or numbers that are wrong."""
        case.outputs[0].view(torch.uint8).fill_(0x7F)
        run()
        torch.cuda.synchronize()
        return case.errors_of(case.result())

    def _work_of(self, launches: Sequence[tuple[str, Filled]]) -> Work:
        """Return what launches kernels one after the other, as the runtime of a bundle does."""

        def work() -> list[torch.Tensor]:
            stream = torch.cuda.current_stream().cuda_stream
            for index, (kernel, filled) in enumerate(launches):
                self._driver.launch(kernel, filled, stream, programmatic=index > 0)
            return []

        return work

    def _time(self, graphs: Mapping[str, torch.cuda.CUDAGraph], calls: int) -> dict[str, list[float]]:
        """Replay the graphs in turns; return the microseconds of a call in each replay."""
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for graph in graphs.values():
            graph.replay()
            graph.replay()
        torch.cuda.synchronize()
        for number in range(self._rounds):
            order = list(graphs.items())[:: -1 if number % 2 else 1]
            events = {name: [torch.cuda.Event(enable_timing=True) for _ in range(2)] for name, _ in order}
            order[0][1].replay()  # the GPU is busy from here on: no time of the host is between two events
            for name, graph in order:
                start, end = events[name]
                start.record()
                graph.replay()
                end.record()
            torch.cuda.synchronize()
            for name, (start, end) in events.items():
                samples[name].append(start.elapsed_time(end) * 1e3 / calls)
        return samples


def _try(call: Call, case: Case) -> dict[str, Any]:
    """Return the errors of a way of torch's, or why there is none: cuDNN does not have every form of every problem."""
    try:
        got = call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"unavailable": str(error).partition("\n")[0]}
    return {"errors": case.errors_of(got)} if case.judged else {}


def _all(calls: Sequence[Call]) -> Work:
    """Return what makes all calls. Its results are kept apart, as ours are."""
    return lambda: [call() for call in calls]


def capture(work: Work, repeats: int) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """Return a graph of some work, several times over, and the tensors that it writes to."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: list[torch.Tensor] = []
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            kept.clear()  # the next results take the same memory
            kept = work()
    return graph, kept


def _worse(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the larger of each; NaN is larger than all."""
    return [a if math.isnan(a) or a > b else b for a, b in zip(first, second, strict=True)]


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return median and extremes."""
    found = {"median": statistics.median(samples), "least": min(samples), "most": max(samples)}
    return {name: round(value, 3) for name, value in found.items()}

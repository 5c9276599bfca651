"""The GPU's half of cutlass/fp16.py: each problem checked in float32, and timed beside torch in one process."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cutlass.fp16_cases import Call, Case, errors, exact, make_case
from benchmarks.cutlass.fp16_problems import Problem
from benchmarks.cutlass.launch import Driver, Filled

# Of the Euclidean norm, and of one element. Rounding a result to fp16 is 2.8e-4 of the norm, and at most 4.9e-4 of one.
TOLERANCES = (1e-3, 4e-3)
# A graph has at least so many calls, so that its own start and end do not count.
FEWEST_CALLS = 12

Work = Callable[[], list[torch.Tensor]]


class Bench:
    """The kernels of a folder and how they are timed. ``serial`` launches wait for the kernel before them to end."""

    def __init__(self, folder: Path, *, rounds: int, serial: bool) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes torch's context current
        torch.manual_seed(0)
        self._driver = Driver(folder, torch.cuda.get_device_properties(0).multi_processor_count)
        self._rounds = rounds
        self._serial = serial

    def measure(self, problem: Problem, kernels: Sequence[str], choice: str) -> dict[str, Any]:
        """Return times in microseconds and errors, of our kernels and of torch's, and which of torch's is fastest."""
        case = make_case(problem)
        with exact():
            want = case.want()
        ours: dict[str, Any] = {}
        works: dict[str, Work] = {}
        for kernel in kernels:
            filled = [self._driver.fill(kernel, structure) for structure in case.structures]
            launches = [each for each in filled if each is not None]
            if len(launches) < len(filled):
                ours[kernel] = {"refused": True}
                continue
            ours[kernel] = {"errors": self._errors_alone(kernel, launches[0], case, want)}
            works[kernel] = self._work_of(kernel, launches)
        theirs = {rival: _try(calls[0], want) for rival, calls in case.rivals.items()}
        works |= {rival: _work_of(case.rivals[rival]) for rival in theirs if "errors" in theirs[rival]}
        repeats = -(-FEWEST_CALLS // len(case.structures))
        graphs = {name: capture(work, repeats) for name, work in works.items()}
        samples = self._time({name: graph for name, (graph, _) in graphs.items()}, repeats * len(case.structures))
        for name, times in samples.items():
            (ours if name in ours else theirs)[name]["us"] = spread(times)
            if name in ours:
                ours[name]["errors"] = _worse(ours[name]["errors"], _errors_of_graph(graphs[name][0], case, want))
        timed = [rival for rival in case.counts if "us" in theirs[rival]]
        return {
            "group": problem.group,
            "choice": choice,
            "ok": "refused" not in ours[choice] and all(map(_is_right, ours.values())),
            "ours": ours,
            "torch": theirs,
            "rival": min(timed, key=lambda rival: theirs[rival]["us"]["median"], default=None),
        }

    def _errors_alone(self, kernel: str, filled: Filled, case: Case, want: torch.Tensor) -> list[float]:
        """Run a kernel once, over memory that holds NaN."""
        case.outputs[0].fill_(torch.nan)
        self._driver.launch(kernel, filled, torch.cuda.current_stream().cuda_stream, programmatic=False)
        torch.cuda.synchronize()
        return _rounded(errors(case.result(), want))

    def _work_of(self, kernel: str, launches: Sequence[Filled]) -> Work:
        """Return what launches a kernel for each set, one after the other, as the runtime of a bundle does."""

        def work() -> list[torch.Tensor]:
            stream = torch.cuda.current_stream().cuda_stream
            for index, filled in enumerate(launches):
                self._driver.launch(kernel, filled, stream, programmatic=index > 0 and not self._serial)
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
            order[0][1].replay()  # the GPU is busy from here on: no time of the host's lies between two events
            for name, graph in order:
                start, end = events[name]
                start.record()
                graph.replay()
                end.record()
            torch.cuda.synchronize()
            for name, (start, end) in events.items():
                samples[name].append(start.elapsed_time(end) * 1e3 / calls)
        return samples


def rival_kernels(problem: Problem) -> dict[str, list[str]]:
    """Return the names of the kernels that torch launches for a problem, by rival."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.backends.cudnn.benchmark = True
    found: dict[str, list[str]] = {}
    for rival, calls in make_case(problem, sets=1).rivals.items():
        try:
            calls[0]()  # searches and loads are not what is asked for
        except RuntimeError:
            found[rival] = []
            continue
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            calls[0]()
            torch.cuda.synchronize()
        found[rival] = sorted({event.name for event in profiled.events() if event.device_type == DeviceType.CUDA})
    return found


def _try(call: Call, want: torch.Tensor) -> dict[str, Any]:
    """Return the errors of a way of torch's, or why there is none: cuDNN does not have every form of every problem."""
    try:
        got = call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"unavailable": str(error).partition("\n")[0]}
    return {"errors": _rounded(errors(got, want))}


def _work_of(calls: Sequence[Call]) -> Work:
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
            kept.clear()  # what comes next is written to the same places
            kept = work()
    return graph, kept


def _errors_of_graph(graph: torch.cuda.CUDAGraph, case: Case, want: torch.Tensor) -> list[float]:
    """Return the errors of what a kernel writes where launches overlap."""
    case.outputs[0].fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    return _rounded(errors(case.result(), want))


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.3g}") for value in values]


def _worse(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return the larger of each; NaN is larger than all."""
    return [a if math.isnan(a) or a > b else b for a, b in zip(first, second, strict=True)]


def spread(samples: Sequence[float]) -> dict[str, float]:
    spread = {"median": statistics.median(samples), "least": min(samples), "most": max(samples)}
    return {name: round(value, 3) for name, value in spread.items()}


def _is_right(found: Mapping[str, Any]) -> bool:
    """Whether no error of a kernel, if it takes the problem, is too large; NaN is."""
    return all(value <= limit for value, limit in zip(found.get("errors", (0, 0)), TOLERANCES, strict=True))

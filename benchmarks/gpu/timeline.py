"""How far each launch of a run moves its end, under a CUDA graph, where launches overlap.

    python -m benchmarks.gpu.timeline model.so [-o timeline.json] [--replays 30]      (a machine with a GPU, torch)

``packager bench --profile`` measures kernels alone: what they wait for, and what they do before they wait, is not in
their times. Here torch's profiler sees replays of the graph. ``us`` is the median, over replays, of a kernel's end less
the end of the one before it; ``own`` is that of its end less its own begin. Inputs are zeros, or random floats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import packager
from benchmarks.gpu.cublas_torch import device_outputs
from benchmarks.harness.gpu import header

WARM = 10


@dataclass(frozen=True)
class Launch:
    """Of a kernel: its place in a run, and microseconds."""

    place: int
    name: str
    us: float
    own: float


def launches(path: Path, replays: int) -> list[Launch]:
    """Return the launches of a bundle's run in order."""
    with packager.load(path) as bundle, bundle.session(graph="on") as session:
        given = {t.name: _input(tuple(t.shape), t.dtype) for t in bundle.inputs}
        run = session.bind(given, device_outputs(bundle), torch.cuda.current_stream())
        for _ in range(WARM):
            run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(replays):
                run()
            torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in events)
    count, rest = divmod(len(spans), replays)
    names = [name for _, _, name in spans[:count]]
    if rest or any(name != names[index % count] for index, (_, _, name) in enumerate(spans)):
        raise SystemExit(f"{len(spans)} launches are not those of {replays} equal runs")
    found = []
    for place, name in enumerate(names):
        own = [spans[at][1] - spans[at][0] for at in range(place, len(spans), count)]
        ends = [spans[at][1] - spans[at - 1][1] for at in range(place, len(spans), count) if place]
        found.append(Launch(place, name, statistics.median(ends or own), statistics.median(own)))
    return found


def by_name(found: Sequence[Launch]) -> list[tuple[str, int, float]]:
    """Return names with the number and the microseconds of their launches, the longest first."""
    times: dict[str, list[float]] = {}
    for launch in found:
        times.setdefault(launch.name, []).append(launch.us)
    return sorted(((name, len(us), sum(us)) for name, us in times.items()), key=lambda each: -each[2])


def _input(shape: tuple[int, ...], dtype: str) -> Any:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, device="cuda").to(kind)
    return torch.zeros(shape, dtype=kind, device="cuda")


def main() -> int:
    """Print the launches of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--replays", type=int, default=30)
    arguments = parser.parse_args()
    found = launches(arguments.bundle, arguments.replays)
    total = sum(launch.us for launch in found)
    print(f"{len(found)} launches, {total:.1f} us")
    for name, count, us in by_name(found):
        print(f"{us:9.1f} us {us / total:6.1%} {count:4} x {us / count:7.2f}  {name[:100]}")
    if arguments.output:
        report = header("gpu_timeline") | {"bundle": arguments.bundle.name, "launches": [*map(asdict, found)]}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

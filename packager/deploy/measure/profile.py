"""Profiles a bundle: the time of each primitive function, with its rates."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from packager.bundle.manifest import Manifest, Primitive
from packager.deploy.load.binding import Tensors
from packager.deploy.load.loader import Bundle
from packager.deploy.load.session import Session, Step

PROFILED_RUNS = 20


@dataclass(frozen=True)
class PrimitiveTime:
    """All calls of a primitive function in one run; copies by the bundle have no backend, bytes and FLOPs.

    A run whose dims are below their maxima has none. For a partition of several functions the manifest attributes all
    work to the last one; its rates use the time of all, and the others have none.
    """

    symbol: str
    backend: str | None
    ops: tuple[str, ...]
    calls: int
    us: float
    share: float
    bytes: int | None = None
    flops: int | None = None
    gb_per_second: float | None = None
    gflops_per_second: float | None = None


@dataclass(frozen=True)
class Profile:
    """Medians over ``runs`` runs of the time of each call, measured separately, in microseconds.

    ``trace`` has the start and duration of each call of the median run.
    """

    runs: int
    total_us: float
    primitives: tuple[PrimitiveTime, ...]
    trace: tuple[tuple[str, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager bench --profile-json``."""
        return {"schema_version": 1} | asdict(self)

    def without_rates(self) -> Profile:
        """Return the times alone, for a run whose dims are smaller than those that the manifest counts work for."""
        return replace(
            self,
            primitives=tuple(
                replace(item, bytes=None, flops=None, gb_per_second=None, gflops_per_second=None)
                for item in self.primitives
            ),
        )

    def trace_events(self, process: str, thread: str) -> dict[str, Any]:
        """Return the trace in Chrome's trace event format, also read by Perfetto."""
        names = {"process_name": process, "thread_name": thread}
        known = {item.symbol: item for item in self.primitives}
        events: list[dict[str, Any]] = [
            {"name": name, "ph": "M", "pid": 0, "tid": 0, "args": {"name": value}} for name, value in names.items()
        ]
        for symbol, start, duration in self.trace:
            item = known[symbol]
            about = {
                "ops": ", ".join(item.ops),
                "GB/s": item.gb_per_second,
                "GFLOP/s": item.gflops_per_second,
            }
            events.append(
                {
                    "name": symbol,
                    "cat": item.backend or "copy",
                    "ph": "X",
                    "ts": start,
                    "dur": duration,
                    "pid": 0,
                    "tid": 0,
                    "args": {key: value for key, value in about.items() if value},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ns"}


def profile_runs(bundle: Bundle, session: Session, inputs: Tensors, outputs: Tensors, runs: int) -> Profile:
    """Profile up to ``PROFILED_RUNS`` runs of a session, after one that is not counted. Raises RunError."""
    steps = [session.profile(inputs, outputs=outputs) for _ in range(min(runs, PROFILED_RUNS) + 1)]
    return summarize(bundle.manifest, steps[1:])


def summarize(manifest: Manifest, runs: Sequence[Sequence[Step]]) -> Profile:
    """Summarize runs of one bundle with the same shapes, and so the same calls in the same order."""
    medians = [statistics.median(step.duration_ns for step in steps) for steps in zip(*runs, strict=True)]
    total = sum(medians)
    times: dict[str, float] = defaultdict(float)
    calls = Counter(step.symbol for step in runs[0])
    for step, duration in zip(runs[0], medians, strict=True):
        times[step.symbol] += duration
    known = {item.symbol: (kind, item) for kind, item in manifest.primitives()}
    of_work = times_of_work(manifest, times)
    primitives = []
    for symbol, time in times.items():
        kind, item = known.get(symbol, (None, None))
        share = time / total if total else 0.0
        entry = PrimitiveTime(symbol, kind, item.ops if item else (), calls[symbol], time / 1e3, share)
        primitives.append(_with_rates(entry, item, of_work[symbol]) if item and symbol in of_work else entry)
    lengths = [steps[-1].start_ns + steps[-1].duration_ns if steps else 0 for steps in runs]
    middle = sorted(range(len(runs)), key=lengths.__getitem__)[len(runs) // 2]
    return Profile(
        runs=len(runs),
        total_us=total / 1e3,
        primitives=tuple(sorted(primitives, key=lambda item: -item.us)),
        trace=tuple((step.symbol, step.start_ns / 1e3, step.duration_ns / 1e3) for step in runs[middle]),
    )


def _with_rates(entry: PrimitiveTime, primitive: Primitive, nanoseconds: float) -> PrimitiveTime:
    """Add what all calls read, write and compute, and the rates over ``nanoseconds``."""
    moved = (primitive.bytes_read + primitive.bytes_written) * entry.calls
    flops = primitive.flops * entry.calls
    rates = (moved / nanoseconds, flops / nanoseconds) if nanoseconds else (None, None)
    return replace(entry, bytes=moved, flops=flops, gb_per_second=rates[0], gflops_per_second=rates[1])


def times_of_work(manifest: Manifest, times: Mapping[str, float]) -> dict[str, float]:
    """Return the time per function that has work attributed to it: its own, or its whole partition's."""
    partitions: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for kind, primitive in manifest.primitives():
        partitions[kind, primitive.composite or primitive.symbol, primitive.nodes].append(primitive.symbol)
    return {symbols[-1]: sum(times.get(symbol, 0.0) for symbol in symbols) for symbols in partitions.values()}

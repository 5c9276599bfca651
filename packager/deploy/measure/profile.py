"""Profiles a bundle: the time of each primitive function, and its ratio to the roofline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packager.bundle.manifest import Manifest, Primitive
from packager.deploy.load.session import Step


@dataclass(frozen=True)
class PrimitiveTime:
    """All calls of a primitive function in one run; copies by the bundle have no backend, bytes and FLOPs.

    For a partition of several functions the manifest attributes all work to the last one; its rates and ``of_floor``
    use the time of all, and the others have none. ``of_floor`` is the roofline's minimum time divided by the measured
    time: 1 is optimal; it exceeds 1 if the data is in caches.
    """

    symbol: str
    backend: str | None
    ops: tuple[str, ...]
    calls: int
    us: float
    bytes: int | None
    flops: int | None
    gb_per_second: float | None
    gflops_per_second: float | None
    share: float
    of_floor: float | None


@dataclass(frozen=True)
class Profile:
    """Medians over ``runs`` runs of the time of each call, measured separately, in microseconds.

    ``copy_gb_per_second`` is the measured copy bandwidth, bytes read and written. The floor of a primitive function is
    its bytes over this bandwidth or, if ``peak_tflops`` is known, the maximum of that and its FLOPs over the peak.
    ``trace`` has the start and duration of each call of the median run.
    """

    runs: int
    total_us: float
    copy_gb_per_second: float
    peak_tflops: float | None
    primitives: tuple[PrimitiveTime, ...]
    trace: tuple[tuple[str, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager bench --profile-json``."""
        return {"schema_version": 1} | asdict(self)

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
                "of floor": item.of_floor,
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


def summarize(
    manifest: Manifest, runs: Sequence[Sequence[Step]], copy_bytes_per_second: float, peak_tflops: float | None
) -> Profile:
    """Summarize runs of one bundle with the same shapes, and so the same calls in the same order."""
    medians = [statistics.median(step.duration_ns for step in steps) for steps in zip(*runs, strict=True)]
    total = sum(medians)
    times: dict[str, float] = {}
    calls: dict[str, int] = {}
    for step, duration in zip(runs[0], medians, strict=True):
        times[step.symbol] = times.get(step.symbol, 0.0) + duration
        calls[step.symbol] = calls.get(step.symbol, 0) + 1
    known: Mapping[str, tuple[str, Primitive]] = {item.symbol: (kind, item) for kind, item in manifest.primitives()}
    of_work = _times_of_work(manifest, times)
    floors = _Floors(copy_bytes_per_second, peak_tflops)
    primitives = [
        _primitive_time(symbol, calls[symbol], time, total, known.get(symbol), of_work.get(symbol), floors)
        for symbol, time in times.items()
    ]
    lengths = [steps[-1].start_ns + steps[-1].duration_ns if steps else 0 for steps in runs]
    middle = sorted(range(len(runs)), key=lengths.__getitem__)[len(runs) // 2]
    return Profile(
        runs=len(runs),
        total_us=total / 1e3,
        copy_gb_per_second=copy_bytes_per_second / 1e9,
        peak_tflops=peak_tflops,
        primitives=tuple(sorted(primitives, key=lambda item: -item.us)),
        trace=tuple((step.symbol, step.start_ns / 1e3, step.duration_ns / 1e3) for step in runs[middle]),
    )


@dataclass(frozen=True)
class _Floors:
    copy_bytes_per_second: float
    peak_tflops: float | None

    def seconds(self, moved: int, flops: int) -> float:
        by_bytes = moved / self.copy_bytes_per_second if self.copy_bytes_per_second else 0.0
        return max(by_bytes, flops / (self.peak_tflops * 1e12)) if self.peak_tflops else by_bytes


def _times_of_work(manifest: Manifest, times: Mapping[str, float]) -> dict[str, float]:
    """Return the time per function that has work attributed to it: its own, or its whole partition's."""
    partitions: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    found: dict[str, float] = {}
    for kind, primitive in manifest.primitives():
        if primitive.composite is None:
            found[primitive.symbol] = times.get(primitive.symbol, 0.0)
        else:
            partitions.setdefault((kind, primitive.composite, primitive.nodes), []).append(primitive.symbol)
    for symbols in partitions.values():
        found[symbols[-1]] = sum(times.get(symbol, 0.0) for symbol in symbols)
    return found


def _primitive_time(
    symbol: str,
    calls: int,
    time: float,
    total: float,
    known: tuple[str, Primitive] | None,
    of_work: float | None,
    floors: _Floors,
) -> PrimitiveTime:
    share = time / total if total else 0.0
    kind, ops = (known[0], known[1].ops) if known else (None, ())
    if known is None or of_work is None:
        return PrimitiveTime(symbol, kind, ops, calls, time / 1e3, None, None, None, None, share, None)
    primitive = known[1]
    moved, flops = (primitive.bytes_read + primitive.bytes_written) * calls, primitive.flops * calls
    return PrimitiveTime(
        symbol,
        kind,
        ops,
        calls,
        time / 1e3,
        moved,
        flops,
        moved / of_work if of_work else None,
        flops / of_work if of_work else None,
        share,
        floors.seconds(moved, flops) * 1e9 / of_work if of_work else None,
    )

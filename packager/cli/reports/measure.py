"""Tables of `packager bench`."""

from __future__ import annotations

from packager.cli.reports.bundle import size_text
from packager.cli.reports.tables import Table, facts
from packager.deploy.measure.bench import BenchResult
from packager.deploy.measure.bench_cuda import CudaFigures
from packager.deploy.measure.profile import PrimitiveTime, Profile

_TOP_PRIMITIVES = 20


def bench_tables(result: BenchResult) -> list[Table]:
    """Return the report of `packager bench`."""
    dims = "".join(f", {name} = {value}" for name, value in result.dims.items())
    run = facts(
        f"{result.model}: {result.runs} runs after {result.warmup}, threads {result.threads}{dims}",
        ("median", f"{result.median_ms:.4f} ms"),
        ("p5 .. p95", f"{result.p5_ms:.4f} .. {result.p95_ms:.4f} ms"),
        ("min, mean", f"{result.min_ms:.4f}, {result.mean_ms:.4f} ms"),
        ("load", f"{result.load_ms:.2f} ms"),
        ("create session", f"{result.session_create_ms:.3f} ms"),
        ("first run", f"{result.first_run_ms:.3f} ms"),
        *_speed(result),
        ("file", size_text(result.file_bytes)),
        ("constants", size_text(result.constant_bytes)),
        ("arena", size_text(result.arena_bytes)),
        ("calls", f"{result.calls} of {result.primitives} primitives"),
    )
    cuda = [_cuda_table(result.cuda)] if result.cuda else []
    return [run, *cuda, *([_profile_table(result.profile)] if result.profile else [])]


def _speed(result: BenchResult) -> list[tuple[str, str]]:
    if result.flops is None or result.gflops_per_second is None:
        return []
    return [("speed", f"{result.gflops_per_second:.2f} GFLOP/s, {result.flops / 1e6:.3f} MFLOP per run")]


def _cuda_table(cuda: CudaFigures) -> Table:
    return facts(
        f"{cuda.name} ({cuda.arch}), driver of CUDA {cuda.driver}, device {cuda.device}, graph {cuda.graph}",
        ("enqueue, median, p95", f"{cuda.enqueue_us_median:.2f}, {cuda.enqueue_us_p95:.2f} us"),
        ("until done, median, p95", f"{cuda.latency_ms_median:.4f}, {cuda.latency_ms_p95:.4f} ms"),
        ("driver's start", f"{cuda.context_ms:.0f} ms"),
    )


def _profile_table(profile: Profile) -> Table:
    shown = profile.primitives[:_TOP_PRIMITIVES]
    return Table(
        f"Primitives by time ({len(shown)} of {len(profile.primitives)}), {profile.total_us:.1f} us in all",
        ("symbol", "backend", "calls", "us", "share", "MB", "GB/s", "MFLOP", "GFLOP/s"),
        tuple(_primitive_row(item) for item in shown),
    )


def _primitive_row(item: PrimitiveTime) -> tuple[str, ...]:
    return (
        item.symbol,
        item.backend or "-",
        str(item.calls),
        f"{item.us:.2f}",
        f"{100 * item.share:.1f} %",
        "-" if item.bytes is None else f"{item.bytes / 1e6:.3f}",
        "-" if item.gb_per_second is None else f"{item.gb_per_second:.0f}",
        "-" if item.flops is None else f"{item.flops / 1e6:.3f}",
        "-" if item.gflops_per_second is None else f"{item.gflops_per_second:.1f}",
    )

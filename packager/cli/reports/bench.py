"""Tables of `packager bench`."""

from __future__ import annotations

from packager.cli.reports.bundle import bench_tables
from packager.cli.reports.tables import Table
from packager.deploy.measure.bench import BenchResult
from packager.deploy.measure.bench_cuda import CudaFigures
from packager.deploy.measure.profile import PrimitiveTime, Profile

_TOP_PRIMITIVES = 20


def all_tables(result: BenchResult) -> list[Table]:
    """Return the tables of a result."""
    tables = bench_tables(result)
    if result.cuda:
        tables.append(_cuda_table(result.cuda))
    if result.profile:
        tables.append(_profile_table(result.profile))
    return tables


def _cuda_table(cuda: CudaFigures) -> Table:
    return Table(
        f"{cuda.name} ({cuda.arch}), driver of CUDA {cuda.driver}, device {cuda.device}, graph {cuda.graph}",
        ("", ""),
        (
            ("enqueue, median, p95", f"{cuda.enqueue_us_median:.2f}, {cuda.enqueue_us_p95:.2f} us"),
            ("until done, median, p95", f"{cuda.latency_ms_median:.4f}, {cuda.latency_ms_p95:.4f} ms"),
            ("driver's start", f"{cuda.context_ms:.0f} ms"),
        ),
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

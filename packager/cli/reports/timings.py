"""The tables of ``packager build --timings``."""

from __future__ import annotations

from packager.cli.reports.tables import Table
from packager.codegen.timings import Timings


def timing_tables(timings: Timings) -> tuple[Table, ...]:
    """Return the time of each stage and of each run of a tool, the longest first, with their totals."""
    stages = sorted(timings.stages.items(), key=lambda stage: -stage[1])
    calls = sorted(timings.calls, key=lambda call: -call.seconds)
    other = timings.total - sum(timings.stages.values())
    return (
        Table(
            "stages",
            ("stage", "seconds"),
            (
                *((name, _shown(seconds)) for name, seconds in stages),
                ("other", _shown(other)),
                ("total", _shown(timings.total)),
            ),
        ),
        Table(
            "compilers and linkers, which may run at the same time",
            ("tool", "output", "seconds"),
            (
                *((call.tool, call.output, _shown(call.seconds)) for call in calls),
                ("total", f"{len(calls)} runs", _shown(sum(call.seconds for call in calls))),
            ),
        ),
    )


def _shown(seconds: float) -> str:
    return f"{seconds:8.3f}"

"""Tables of `packager tune`."""

from __future__ import annotations

from packager.cli.reports.tables import Table
from packager.deploy.measure.tune import TuneResult


def tune_tables(result: TuneResult) -> list[Table]:
    """Return the tables: each function's candidates, and the gain of the choice."""
    rows: list[tuple[str, ...]] = []
    for tuned in result.functions:
        for index, timing in enumerate(tuned.record.timings):
            first = (tuned.symbol, str(tuned.calls)) if index == 0 else ("", "")
            marks = [
                *(["chosen"] if timing.candidate == tuned.record.chosen else []),
                *(["before"] if timing.candidate == tuned.before else []),
            ]
            difference = f"+{timing.slower_us:.2f} +- {timing.error_us:.2f}"
            rows.append((*first, timing.candidate, difference, ", ".join(marks)))
    ratio = result.before_us / result.after_us
    return [
        Table(f"{result.path} on {result.device}", ("function", "calls", "candidate", "us per call", ""), tuple(rows)),
        Table(
            "A run",
            ("", ""),
            (
                ("before", f"{result.before_us:.1f} us"),
                ("after", f"{result.after_us:.1f} us"),
                ("ratio", f"{ratio:.3f}"),
            ),
        ),
    ]

"""The table of ``packager matrix``."""

from __future__ import annotations

from collections.abc import Sequence

from packager.cli.reports.tables import Table
from packager.pipeline.many.process import Outcome


def matrix_tables(outcomes: Sequence[Outcome]) -> tuple[Table, ...]:
    """Return what became of each build, and what those that failed said."""
    failed = [outcome for outcome in outcomes if outcome.code]
    rows = tuple(
        (
            outcome.name,
            f"failed ({outcome.code})" if outcome.code else "built",
            f"{outcome.seconds:.1f}",
            "" if outcome.code else f"{outcome.output.stat().st_size / 2**20:.2f}",
            outcome.sha256[:16],
        )
        for outcome in outcomes
    )
    title = f"{len(outcomes) - len(failed)} of {len(outcomes)} built"
    said = tuple((outcome.name, line) for outcome in failed for line in outcome.error.splitlines() if line.strip())
    errors = (Table("errors", ("build", "error"), said),) if said else ()
    return (Table(title, ("build", "result", "seconds", "MiB", "SHA-256"), rows), *errors)

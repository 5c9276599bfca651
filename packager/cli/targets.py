"""The command about Targets: parse, call, print. Nothing else."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(targets)


def targets(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="Show the attributes of this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the kinds of Targets and whether they can be used here, or the attributes of one kind."""
    from packager.targets import availability as target_report

    reports = target_report.report_all() if kind is None else [target_report.report_kind(kind)]
    if as_json:
        print(json.dumps(target_report.to_json(reports), indent=2))
        return
    from packager.cli.reports.bundle import print_tables

    print_tables([target_report.list_table(reports)] if kind is None else target_report.kind_tables(reports[0]))

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
    from packager.cli.reports.targets import kind_tables, list_table
    from packager.targets.availability import report_all, report_kind, to_json

    reports = report_all() if kind is None else [report_kind(kind)]
    if as_json:
        print(json.dumps(to_json(reports), indent=2))
        return
    from packager.cli.reports.tables import print_tables

    print_tables([list_table(reports)] if kind is None else kind_tables(reports[0]))

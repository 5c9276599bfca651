"""The command that builds many bundles: parse, call the function of the same name, print."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from packager.cli.files import Json, print_json
from packager.cli.progress import Quiet, shown_progress
from packager.progress import received


def matrix(
    builds: Annotated[Path, typer.Argument(metavar="BUILDS.toml", help="Its models, Targets and dims.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder for bundles.")] = Path(),
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PATTERN", help="Builds by name: 'digits-*'; repeatable.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", metavar="N", help="Parallel compilers; default: all cores.", min=1)
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(metavar="N", help="Builds at a time, which share the compilers.", min=1)
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="ray[://HOST:PORT]", help="Build on a cluster of Ray, each with -j cores.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the builds, and build nothing.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Build each model of a file for each of its Targets and dims. Exits with the code of the first that fails."""
    from packager.pipeline.many.matrix import build_matrix, build_matrix_on, read_matrix

    cases = read_matrix(builds, output, only or ())
    if dry_run:
        for case in cases:
            print(case.name, *case.arguments)
        return
    with shown_progress(quiet=quiet) as receiver, received(receiver):
        outcomes = build_matrix_on(cases, on, jobs=jobs) if on else build_matrix(cases, jobs=jobs, at_once=at_once)
    failed = [outcome for outcome in outcomes if outcome.code]
    if as_json:
        listed = [dataclasses.asdict(outcome) | {"output": str(outcome.output)} for outcome in outcomes]
        print_json({"schema_version": 1, "builds": listed})
    else:
        from packager.cli.reports.matrix import matrix_tables
        from packager.cli.reports.tables import print_tables

        print_tables(matrix_tables(outcomes))
    if failed:
        raise typer.Exit(failed[0].code if failed[0].code > 0 else 70)


COMMANDS = (matrix,)

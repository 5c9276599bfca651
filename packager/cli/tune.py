"""``packager tune``: parse, call the API, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from packager.cli.atomic_write import write_whole
from packager.cli.deploy import BundlePath, Device, Json
from packager.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(tune)


def tune(
    bundle: BundlePath,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="Write the records, for later builds.")
    ] = None,
    bind: Annotated[
        Path | None, typer.Option(metavar="OUT.so", help="Write a copy of the bundle that uses the fastest ones.")
    ] = None,
    tuning: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.json", help="With --bind: measure nothing, take these records. Repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns that each candidate gets.", min=3)] = 30,
    seed: Annotated[int, typer.Option(help="Of the random inputs.", min=0)] = 0,
    threads: Annotated[int, typer.Option(help="Threads, the caller's included.", min=0)] = 0,
    device: Device = 0,
    as_json: Json = False,
) -> None:
    """Measure the candidates of a bundle's primitive functions here, and keep or bind the fastest.

    Needs neither TVM nor a compiler. The bundle itself is not changed, and results do not depend on the choice.
    """
    from packager.deploy.load.selection import by_records, write_selected

    if tuning:
        from packager.bundle.reader import read_manifest
        from packager.bundle.tuning_records import read_records

        if bind is None or output is not None or as_json:
            raise UsageError(
                "--tuning is for --bind alone: nothing is measured",
                hint="packager tune BUNDLE --tuning FILE --bind OUT",
            )
        selection = by_records(read_manifest(bundle)[0], read_records(tuning))
    else:
        from packager.cli.reports.tables import print_tables
        from packager.cli.reports.tune import tune_tables
        from packager.deploy.measure.tune import tune as tune_bundle

        result = tune_bundle(bundle, rounds=rounds, seed=seed, threads=threads, device=device, progress=_report)
        selection = result.selection
        if output is not None:
            text = result.records.to_json()
            write_whole(output, lambda stream: stream.write(text))
        if as_json:
            print(json.dumps(result.to_json(), indent=2))
        else:
            print_tables(tune_tables(result))
    if bind is not None:
        write_whole(bind, lambda stream: write_selected(bundle, stream, selection))


def _report(line: str) -> None:
    print(line, file=sys.stderr)

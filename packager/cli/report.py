"""``packager report``, which needs neither TVM nor a compiler: parse, gather, write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packager.cli.deploy import Device
from packager.cli.files import write_whole
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.cli.release import Libraries
from packager.errors import UsageError
from packager.progress import received
from packager.progress import report as progress

if TYPE_CHECKING:
    from packager.deploy.report.measurements import Measurement
    from packager.deploy.report.page import Described
    from packager.deploy.report.subjects import BundleSubject


def report(
    subjects: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE|WORKDIR|RECORDS...",
            help="A bundle or the kept work folder of its build, or two to compare; records of packager tune.",
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.html", help="The page; default: NAME-report.html.")
    ] = None,
    profile: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.json", help="What bench --profile-json wrote, for each bundle in order."),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure the bundles here, with random inputs.")] = False,
    threads: Annotated[int, typer.Option(help="With --run: threads, the caller's included.", min=0)] = 0,
    device: Device = 0,
    libraries: Libraries = None,
    peak_gflops: Annotated[
        float | None, typer.Option(metavar="GFLOP/S", help="Peak of the machine, for the share of the roofline.", min=0)
    ] = None,
    peak_gb: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Peak of its memory, for the share of the roofline.", min=0)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write what is known of a bundle as one HTML page. It works offline; nothing is executed without --run. Prints its
    path."""
    from packager.deploy.report.html import render_page
    from packager.deploy.report.measurements import Roof, read_measurement
    from packager.deploy.report.page import make_page
    from packager.deploy.report.subjects import read_subjects

    if run and profile:
        raise UsageError("--run and --profile exclude each other")
    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        found = read_subjects(subjects)
        if (run or profile) and not found.bundles:
            raise UsageError("records have nothing to run or to profile", hint="name a bundle, too")
        if profile and len(profile) > len(found.bundles):
            raise UsageError(f"{len(profile)} profiles for {len(found.bundles)} bundles: give one for each, in order")
        profiles = [read_measurement(path) for path in profile or ()]
        described = []
        for number, subject in enumerate(found.bundles):
            measured = _measure(subject, threads, device, libraries) if run else None
            described.append(_describe(subject, profiles[number] if number < len(profiles) else measured, libraries))
        progress("rendering the page")
        page = render_page(make_page(found, described, Roof(peak_gflops, peak_gb)))
    output = output or Path(f"{subjects[0].resolve().stem}-report.html")
    write_whole(output, lambda stream: stream.write(page))
    print(output)


def _measure(subject: BundleSubject, threads: int, device: int, libraries: Sequence[Path] | None) -> Measurement:
    from packager.deploy.report.measurements import measure

    progress(f"measuring {subject.file.path.name}")
    return measure(subject.file.path, threads=threads, device=device, libraries=libraries)


def _describe(subject: BundleSubject, measured: Measurement | None, libraries: Sequence[Path] | None) -> Described:
    from packager.cli.reports.bundle import fact_tables
    from packager.deploy.report.page import Described, TableView
    from packager.deploy.verify.verifier import verify

    tables = tuple(TableView(table.title, table.columns, table.rows) for table in fact_tables(subject.file.manifest))
    return Described(subject, tables, verify(subject.file.path, libraries=libraries), measured)


COMMANDS = (report,)

"""The commands of the build side: build, doctor, cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from packager.cli import interruption
from packager.cli.explain import allow_torch_for, print_placement
from packager.cli.options import with_build_options
from packager.pipeline.options import BuildOptions

if TYPE_CHECKING:
    from packager.codegen.timings import Timings


def register(app: typer.Typer) -> None:
    """Add the build commands to the application."""
    for command in (with_build_options(build), doctor, cache):
        app.command()(command)


def build(
    options: BuildOptions,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what each backend would be given, and build nothing.")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print how long each stage and each compiler took, on stderr.")
    ] = False,
) -> None:
    """Compile a model into one self-contained shared library. Prints its path."""
    allow_torch_for(options)
    if dry_run:
        print_placement(options)
        return
    from packager.pipeline.build import build as build_bundle

    taken: list[Timings] = []
    with _progress() as progress:
        path = build_bundle(**{**vars(options), "progress": progress, "timings": taken.append})
    if timings:
        from packager.cli.reports.tables import print_tables
        from packager.cli.reports.timings import timing_tables

        print_tables(timing_tables(taken[0]), sys.stderr)
    print(path)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current stage: a spinner on a terminal, plain lines otherwise. An interrupted build goes no further."""
    start = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        with console.status("starting") as status:
            yield _checked(status.update)
        console.print(f"built in {time.monotonic() - start:.1f} s")
        return
    yield _checked(lambda stage: print(f"[{time.monotonic() - start:5.1f} s] {stage}", file=sys.stderr, flush=True))


def _checked(show: Callable[[str], None]) -> Callable[[str], None]:
    def report(stage: str) -> None:
        interruption.check()
        show(stage)

    return report


def doctor() -> None:
    """Say what works here: toolchain, backends, versions, and what to install for the rest."""
    from packager.pipeline.doctor import examine

    findings = examine()
    for finding in findings:
        mark = "ok" if finding.ok else "--"
        print(f"{mark}  {finding.what:<28} {finding.detail}")
        if finding.hint:
            print(f"    hint: {finding.hint}")
    if not all(finding.ok for finding in findings if finding.required):
        raise typer.Exit(4)


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
) -> None:
    """Show what the build cache holds, or clear it."""
    from packager.codegen.cache import Cache

    store = Cache.of_user()
    if clear:
        print(f"removed {store.clear()} entries from {store.folder}")
        return
    usage = store.usage()
    print(usage.folder)
    for kind in ("bundle", "object"):
        print(f"{kind}: {usage.entries.get(kind, 0)} entries, {usage.nbytes.get(kind, 0) / 2**20:.1f} MiB")

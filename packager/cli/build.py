"""The commands of the build side: parse, call the function of the same name, print."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from packager.cli import hide_torch, interruption
from packager.cli.options import with_build_options
from packager.cli.reports.tables import print_tables
from packager.errors import ModelError
from packager.pipeline.options import BuildOptions, paths_of

if TYPE_CHECKING:
    from packager.codegen.timings import Timings


def build(
    options: BuildOptions,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which backend would compile what, and build nothing.")
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
            yield _checked(lambda line: console.print(line) if line.startswith("warning: ") else status.update(line))
        console.print(f"built in {time.monotonic() - start:.1f} s")
        return
    yield _checked(lambda stage: print(f"[{time.monotonic() - start:5.1f} s] {stage}", file=sys.stderr, flush=True))


def _checked(show: Callable[[str], None]) -> Callable[[str], None]:
    def report(stage: str) -> None:
        interruption.check()
        show(stage)

    return report


def explain(
    options: BuildOptions,
    *,
    candidates: Annotated[
        bool,
        typer.Option("--candidates", help="List the alternatives of each part of the model: what a trial measures."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain what a build would do: supported operators, their backends, reasons. Exits with 3 if it would fail."""
    from packager.cli.reports.explain import render
    from packager.pipeline.explain import explain as explain_model

    allow_torch_for(options)
    found = explain_model(options, candidates=candidates)
    print(json.dumps(dataclasses.asdict(found), indent=2) if as_json else render(found))
    if found.refusal is not None:
        raise typer.Exit(3)


def print_placement(options: BuildOptions) -> None:
    """Print which backend would take which parts of a model. Raises ModelError for one that cannot be built."""
    from packager.cli.reports.explain import assumptions, render_table
    from packager.pipeline.explain import explain as explain_model

    found = explain_model(options)
    for line in assumptions(found):
        print(line, file=sys.stderr)
    if found.table is not None:
        print(render_table(found.table))
    if found.refusal is not None:
        raise ModelError(found.refusal.message, detail="\n".join(found.refusal.detail), hint=found.refusal.hint)


def allow_torch_for(options: BuildOptions) -> None:
    """Let TVM import torch where a model is one of torch's programs."""
    if any(path.suffix == ".pt2" for path in paths_of(options.model)):
        hide_torch.remove()


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
    print_tables([list_table(reports)] if kind is None else kind_tables(reports[0]))


def doctor() -> None:
    """Check toolchain, backends and versions, and say what to install."""
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
    """Show the size of the build cache, or clear it."""
    from packager.codegen.cache import Cache

    store = Cache.of_user()
    if clear:
        print(f"removed {store.clear()} entries from {store.folder}")
        return
    usage = store.usage()
    print(usage.folder)
    for kind in ("bundle", "object"):
        print(f"{kind}: {usage.entries.get(kind, 0)} entries, {usage.nbytes.get(kind, 0) / 2**20:.1f} MiB")


COMMANDS = (with_build_options(build), doctor, cache, with_build_options(explain, explained=True), targets)

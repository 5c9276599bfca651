"""The commands of the build side: parse, call the function of the same name, print."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from packager.cli import hide_torch
from packager.cli.files import Json, print_json
from packager.cli.options import with_build_options
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.cli.reports.tables import print_tables
from packager.errors import ModelError
from packager.pipeline.options import BuildOptions, paths_of
from packager.progress import received

if TYPE_CHECKING:
    from packager.codegen.timings import Timings


def build(
    options: BuildOptions,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which backend would compile what, and build nothing.")
    ] = False,
    quiet: Quiet = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print how long each stage and each compiler took, on stderr.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile a model into one self-contained shared library. Prints its path, or as JSON also how long it took."""
    allow_torch_for(options)
    if dry_run:
        print_placement(options, quiet=quiet, as_json=as_json)
        return
    from packager.pipeline.build import build as build_bundle

    taken: list[Timings] = []
    with shown_progress(quiet=quiet) as receiver:
        path = build_bundle(**{**vars(options), "progress": receiver, "timings": taken.append})
    if timings:
        from packager.cli.reports.timings import timing_tables

        print_tables(timing_tables(taken[0]), sys.stderr)
    if as_json:
        print_json({"schema_version": 1, "bundle": str(path), "timings": taken[0].to_json()})
    else:
        print(path)


def explain(
    options: BuildOptions,
    *,
    candidates: Annotated[
        bool,
        typer.Option("--candidates", help="List the alternatives of each part of the model: what a trial measures."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain what a build would do, what is refused, and why. Exits with 3 if it would fail."""
    from packager.cli.reports.explain import render
    from packager.pipeline.explain import explain as explain_model

    allow_torch_for(options)
    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        found = explain_model(options, candidates=candidates)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print(render(found))
    if found.refusal is not None:
        raise typer.Exit(3)


def print_placement(options: BuildOptions, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print which backend would take which parts of a model. Raises ModelError for one that cannot be built."""
    from packager.cli.reports.explain import assumptions, render_table
    from packager.pipeline.explain import explain as explain_model

    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        found = explain_model(options)
    if as_json and found.refusal is None:
        print_json(dataclasses.asdict(found))
        return
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
    as_json: Json = False,
) -> None:
    """List the kinds of Targets, or the attributes of one. Says which can be used here."""
    from packager.cli.reports.targets import kind_tables, list_table
    from packager.targets.availability import report_all, report_kind, to_json

    reports = report_all() if kind is None else [report_kind(kind)]
    if as_json:
        print_json(to_json(reports))
        return
    print_tables([list_table(reports)] if kind is None else kind_tables(reports[0]))


def doctor(as_json: Json = False) -> None:
    """Check toolchain, backends and versions, and say what to install. Exits with 4 if packager cannot build here."""
    from packager.pipeline.doctor import examine

    findings = examine()
    if as_json:
        print_json({"schema_version": 1, "findings": [dataclasses.asdict(finding) for finding in findings]})
    for finding in findings if not as_json else ():
        mark = "ok" if finding.ok else "--"
        print(f"{mark}  {finding.what:<28} {finding.detail}")
        if finding.hint:
            print(f"    hint: {finding.hint}")
    if not all(finding.ok for finding in findings if finding.required):
        raise typer.Exit(4)


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: Json = False,
) -> None:
    """Show the size of the build cache, or clear it. Says what shared caches were asked for, too.

    Builds remove what was used longest ago beyond $PACKAGER_CACHE_LIMIT, as 500M; default: 10G, and 0 is no limit.
    """
    from packager.codegen.cache import Cache
    from packager.codegen.store_statistics import read_statistics

    store = Cache.of_user()
    if clear:
        removed = store.clear()
        if as_json:
            print_json({"schema_version": 1, "folder": str(store.folder), "removed": removed})
        else:
            print(f"removed {removed} entries from {store.folder}")
        return
    usage, stores = store.usage(), read_statistics(store)
    if as_json:
        by_store = {"stores": {name: dataclasses.asdict(counts) for name, counts in stores.items()}}
        facts = {"folder": str(usage.folder), "limit": store.limit}
        print_json({"schema_version": 1} | dataclasses.asdict(usage) | facts | by_store)
        return
    print(usage.folder)
    for kind in ("bundle", "object"):
        print(f"{kind}: {usage.entries.get(kind, 0)} entries, {usage.nbytes.get(kind, 0) / 2**20:.1f} MiB")
    print("no limit" if store.limit is None else f"limit: {store.limit / 2**20:.1f} MiB")
    for name, counts in stores.items():
        print(
            f"{name}: {counts.hits} hits ({counts.bytes_read / 2**20:.1f} MiB), {counts.misses} misses, "
            f"{counts.added} added ({counts.bytes_written / 2**20:.1f} MiB), {counts.errors} errors"
            + (f"; the last: {counts.last_error}" if counts.last_error else "")
        )


COMMANDS = (with_build_options(build), doctor, cache, with_build_options(explain, explained=True), targets)

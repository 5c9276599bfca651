"""The command that explains a model: parse, call, print. Nothing else."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from packager.cli import hide_torch
from packager.cli.options import with_build_options
from packager.errors import ModelError
from packager.pipeline.options import BuildOptions, paths_of


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(with_build_options(explain, explained=True))


def explain(
    options: BuildOptions,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a build would meet: what is supported, which backend takes what, and why not (then exits with 3)."""
    from packager.cli.reports.explain import render
    from packager.pipeline.explain import explain as explain_model

    allow_torch_for(options)
    found = explain_model(options)
    print(json.dumps(dataclasses.asdict(found), indent=2) if as_json else render(found))
    if found.refusal is not None:
        raise typer.Exit(3)


def print_placement(options: BuildOptions) -> None:
    """Print which backend would take which parts of a model. Raises ModelError for one that cannot be built."""
    from packager.cli.reports.explain import assumptions
    from packager.cli.reports.placement import render_table
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

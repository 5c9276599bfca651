"""The command that explains a model: parse, call, print. Nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from packager.cli import hide_torch as without_torch
from packager.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(explain)


def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=".onnx, .pt2 (torch.export) or Relax .json.")],
    *,
    target: options.Target = None,
    dim: options.Dim = None,
    freeze: options.Freeze = None,
    precision: options.Precision = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a build would meet: what is supported, which backend takes what, and why not (then exits with 3)."""
    from packager.cli.reports.explain import render
    from packager.frontends.dims import parse_dims
    from packager.frontends.freeze import parse_frozen
    from packager.pipeline.explain import explain as explain_model

    if model.suffix == ".pt2":
        without_torch.remove()
    dims = parse_dims(dim or [])
    found = explain_model(
        model, targets=target or [], dims=dims, freeze=parse_frozen(freeze or []), precision=precision
    )
    print(json.dumps(dataclasses.asdict(found), indent=2) if as_json else render(found))
    if found.refusal is not None:
        raise typer.Exit(3)

"""``packager export``: parse, call the function of the same name, print."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from packager.cli import hide_torch
from packager.cli.files import Json, print_json
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.progress import received


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=".onnx, .pt2 (torch.export) or Relax .json.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The file to write.")],
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE|MIN:MAX", help="Fix a symbolic dim, or bound it; default: open."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the graph; default: the file's.")] = None,
    entry: Annotated[
        str | None, typer.Option(metavar="NAME", help="The function of a Relax module to write; default: main.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors|.npz", help="Tensors that replace constants by name.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="An ONNX input that becomes a constant; repeatable."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="fp16|bf16", help="Let a float32 model compute in half precision.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="embedded|external", help="Default: external from 2 GiB on.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write what packager imports of a model as ONNX. For other tools or to look at, with constants by name."""
    from packager.frontends.dims import parse_dims
    from packager.frontends.freeze import parse_frozen
    from packager.pipeline.export import OPEN_BOUNDS
    from packager.pipeline.export import export as export_model

    if model.suffix == ".pt2":
        hide_torch.remove()
    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        made = export_model(
            model,
            output,
            dims=dict(parse_dims(dim or [])),
            name=name,
            entry=entry,
            constants=constants,
            freeze=parse_frozen(freeze or []),
            precision=precision,
            weights=weights,
        )
    if as_json:
        paths = {"model": str(made.model), "weights": None if made.weights is None else str(made.weights)}
        print_json({"schema_version": 1} | dataclasses.asdict(made) | paths)
        return
    for dim_name, bounds in made.dims.items():
        if bounds != OPEN_BOUNDS:
            print(f"dim {dim_name}: the file holds for {bounds[0]} to {bounds[1]}", file=sys.stderr)
    print(made.model)


COMMANDS = (export,)

"""The command that builds a bundle's engines on the machine that runs it: parse, call the API, print."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Literal

import typer

from packager.cli.deploy import Device, Gpu, On, check_place
from packager.cli.files import Json, print_json
from packager.cli.progress import Quiet, shown_progress
from packager.cli.release import BundlePath, Libraries
from packager.cli.reports.tables import print_tables


def finalize(
    bundle: BundlePath,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.so", help="Write the finalized copy.")],
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The Python that has TensorRT; default: packager's own.")
    ] = None,
    use: Annotated[
        Literal["measured", "engines", "fallbacks"],
        typer.Option(metavar="measured|engines|fallbacks", help="What the copy runs."),
    ] = "measured",
    rounds: Annotated[int, typer.Option(metavar="N", help="Measurements of engines and fallbacks.", min=3)] = 30,
    tolerance: Annotated[
        float,
        typer.Option(metavar="R", help="Largest difference of results, as a part of the largest value.", min=0.0),
    ] = 0.02,
    device: Device = 0,
    libraries: Libraries = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build all engines anew, and keep none.")] = False,
    on: On = "",
    gpu: Gpu = "",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Build the engines of TensorRT that are pending in a bundle. Measures them, and writes a copy that has them.

    Needs neither TVM nor a compiler. The bundle itself is not changed. Engines are cached by their graph, the version
    of TensorRT and the GPU, so an interrupted command goes on where it was. With --on a cluster's node does it:
    --python and --libraries are paths there.
    """
    from packager.cli.reports.finalize import finalize_tables

    check_place(on, gpu, device)
    if on:
        from packager.pipeline.many.ray_bundles import Place, finalize_on

        finish = functools.partial(finalize_on, Place(on, gpu))
    else:
        from packager.deploy.finalize.finalizer import finalize as finalize_bundle

        finish = functools.partial(finalize_bundle, device=device)
    with shown_progress(quiet=quiet) as receiver:
        result = finish(
            bundle,
            output,
            python=python,
            use=use,
            rounds=rounds,
            tolerance=tolerance,
            libraries=libraries,
            cache=not no_cache,
            progress=receiver,
        )
    if as_json:
        print_json(result.to_json())
    else:
        print_tables(finalize_tables(result))


COMMANDS = (finalize,)

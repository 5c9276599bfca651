"""The command that fills a shared cache with kernels: parse, call the function of the same name, print."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from packager.cli.files import Json, print_json
from packager.cli.progress import Quiet, shown_progress
from packager.progress import received


def kernels(
    *,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR|URL", help="The cache, for packager build --cache.")
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option(
            "--arch",
            metavar="ARCH[,ARCH]",
            help="GPUs of a bundle, as the Target cuda has them; repeatable. Default: sm_90a.",
        ),
    ] = None,
    portfolio: Annotated[str, typer.Option("--portfolio", metavar="NAME|FILE.json", help="Which kernels.")] = "default",
    precision: Annotated[
        str, typer.Option("--precision", metavar="fp16|bf16", help="That of the builds that are to find them.")
    ] = "fp16",
    most: Annotated[
        int | None, typer.Option("--most", metavar="N", help="The N most wanted kernels of each alone.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", metavar="N", help="Parallel compilers; default: all cores.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the kernels, and compile none.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compile CUTLASS kernels that models commonly need, in advance. Builds find them in a cache that they share."""
    from packager.pipeline.kernels import compile_kernels

    with shown_progress(quiet=quiet) as receiver, received(receiver):
        listed = compile_kernels(
            output,
            archs=arch or ("sm_90a",),
            portfolio=portfolio,
            precision=precision,
            most=most,
            jobs=jobs,
            dry_run=dry_run,
        )
    if as_json:
        print_json({"schema_version": 1, "lists": [dataclasses.asdict(found) for found in listed]})
        return
    for found in listed:
        done = f"{len(found.kernels)} kernels" + ("" if dry_run else f", {found.stored} of them new")
        print(f"{','.join(found.archs)}: {done}")
        for name in found.kernels if dry_run else ():
            print(f"  {name}")


COMMANDS = (kernels,)

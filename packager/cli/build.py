"""The commands of the build side: build, doctor, cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packager.cli import hide_torch as without_torch
from packager.cli import interruption, options

if TYPE_CHECKING:
    from packager.frontends.dims import DimArgument


def register(app: typer.Typer) -> None:
    """Add the build commands to the application."""
    for command in (build, doctor, cache):
        app.command()(command)


def build(
    model: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help=".onnx, .pt2 (torch.export) or Relax .json; several are entries of one."),
    ],
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.so", help="The bundle.")] = None,
    target: options.Target = None,
    dim: options.Dim = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: the file's.")] = None,
    header: Annotated[Path | None, typer.Option(metavar="OUT.h", help="Also write a C header for the model.")] = None,
    static: Annotated[bool, typer.Option("--static", help="A static archive instead, with --prefix.")] = False,
    prefix: Annotated[str | None, typer.Option(help="Prefix of the archive's entry function.")] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="embedded|external", help="Default: external above 2 GiB.")
    ] = None,
    keep_workdir: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep all intermediates there.")] = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", help="Parallel compilers; default: all cores.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither use nor fill the cache.")] = False,
    golden: Annotated[
        str | None, typer.Option(metavar="SEED|FILE.npz", help="Put a golden input/output pair into the bundle.")
    ] = None,
    op_library: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.toml", help="Operators of your own; repeatable.")
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors|.npz", help="Tensors that replace constants by name.")
    ] = None,
    entry: Annotated[str | None, typer.Option(metavar="NAME", help="The function of a Relax module to build.")] = None,
    precision: options.Precision = None,
    cuda_home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A CUDA toolkit to use in place of the wheels.")
    ] = None,
    freeze: options.Freeze = None,
    tuning: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.json", help="Records of packager tune; repeatable.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="IN=OUT", help="Keep input IN in the session; output OUT is its next value; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what each backend would be given, and build nothing.")
    ] = False,
) -> None:
    """Compile a model into one self-contained shared library. Prints its path."""
    from packager.frontends.dims import parse_dims
    from packager.frontends.freeze import parse_frozen
    from packager.graph.states import parse_states
    from packager.pipeline.build import build as build_bundle

    if any(path.suffix == ".pt2" for path in model):
        without_torch.remove()
    dims = parse_dims(dim or [])
    states, frozen = parse_states(state or []), parse_frozen(freeze or [])
    if dry_run:
        _print_placement(model, target or [], dims, op_library or [], constants, entry, precision, states, frozen)
        return
    with _progress() as progress:
        path = build_bundle(
            model,
            output,
            targets=target or [],
            dims=dims,
            name=name,
            header=header,
            static=static,
            prefix=prefix,
            weights=weights,
            keep_workdir=keep_workdir,
            jobs=jobs,
            cache=not no_cache,
            golden=golden,
            op_libraries=op_library or [],
            constants=constants,
            entry=entry,
            precision=precision,
            cuda_home=cuda_home,
            tuning=tuning or (),
            states=states,
            freeze=frozen,
            progress=progress,
        )
    print(path)


def _print_placement(
    model: list[Path],
    targets: list[str],
    dims: Mapping[str, DimArgument],
    op_libraries: list[Path],
    constants: Path | None,
    entry: str | None,
    precision: str | None,
    states: dict[str, str],
    freeze: dict[str, Any],
) -> None:
    from packager.pipeline.build import place

    table = place(
        model,
        targets=targets,
        dims=dims,
        op_libraries=op_libraries,
        constants=constants,
        entry=entry,
        precision=precision,
        states=states,
        freeze=freeze,
    )
    from packager.cli.reports.placement import render_table

    print(render_table(table))


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

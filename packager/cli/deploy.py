"""The commands that run and measure bundles, which need neither TVM nor a compiler: parse, call the API, print."""

from __future__ import annotations

import functools
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from packager.cli.files import Json, print_json, read_inputs, write_json, write_whole
from packager.cli.progress import SHORT_SECONDS, Quiet, shown_progress
from packager.cli.release import BundlePath, Libraries
from packager.cli.reports.tables import Table, print_tables
from packager.errors import UsageError
from packager.progress import received

Device = Annotated[int, typer.Option(metavar="N", help="Index of the GPU that a CUDA bundle runs on.", min=0)]
On = Annotated[
    str, typer.Option("--on", metavar="ray[://HOST:PORT]", help="Do it on a node of a cluster of Ray, which has a GPU.")
]
Gpu = Annotated[str, typer.Option("--gpu", metavar="NAME", help="With --on: that GPU, as Ray names it: H100.")]

Dim = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dim; default: its maximum.")
]


def check_place(on: str, gpu: str, device: int) -> None:
    """Raise UsageError for options that contradict ``--on``, or are for it."""
    if gpu and not on:
        raise UsageError("--gpu is for --on", hint="packager tune BUNDLE --on ray://HOST:10001 --gpu H100")
    if on and device:
        raise UsageError("--device and --on exclude each other: the cluster gives a GPU that is free")


def run(
    bundle: BundlePath,
    *,
    single: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE.npy", help="One input; repeat for more.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="All inputs by name.")] = None,
    random: Annotated[int | None, typer.Option(metavar="SEED", help="Random inputs.")] = None,
    dim: Dim = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.npz", help="Write the outputs.")] = None,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads, the caller's included.", min=0)] = 0,
    device: Device = 0,
    libraries: Libraries = None,
    entry: Annotated[str | None, typer.Option(metavar="NAME", help="The model to run; default: the first.")] = None,
    as_json: Json = False,
) -> None:
    """Run a bundle once. Without -o, print a summary of each output."""
    from packager.deploy.load.loader import load

    if dim and random is None:
        raise UsageError("--dim is for --random: the sizes of given inputs are theirs")
    if random is not None and (single or inputs):
        raise UsageError("--random cannot be combined with --input or --inputs")
    tensors = read_inputs(single or [], inputs)
    with load(bundle, threads=threads, device=device, libraries=libraries) as loaded:
        if random is not None:
            from packager.deploy.measure.random_inputs import parse_sizes, random_inputs

            models = {model.name: model for model in loaded.manifest.entries}
            tensors = random_inputs(models.get(entry or "", loaded.manifest), random, parse_sizes(dim or []))
        elif not tensors and loaded.inputs:
            name = loaded.inputs[0].name
            hint = f"--random 0 makes them up; --input {shlex.quote(name)}=FILE.npy or --inputs FILE.npz read them"
            raise UsageError("no inputs are given", hint=hint)
        outputs = loaded.run(tensors, entry=entry)
    if output:
        import numpy as np

        write_whole(output, lambda stream: np.savez(stream, allow_pickle=False, **outputs))
    rows = [_summary(name, array) for name, array in outputs.items()]
    if as_json:
        print_json({"schema_version": 1, "outputs": rows})
    elif not output:
        columns = ("name", "dtype", "shape", "min", "max", "mean", "non-finite")
        cells = tuple(tuple(_cell(value) for value in row.values()) for row in rows)
        print_tables([Table("Outputs", columns, cells)])


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _summary(name: str, array: Any) -> dict[str, Any]:
    import numpy as np

    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high, mean = (float(finite.min()), float(finite.max()), float(finite.mean())) if finite.size else (None,) * 3
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": low,
        "max": high,
        "mean": mean,
        "non_finite": int(numbers.size - finite.size),
    }


def bench(
    bundle: BundlePath,
    *,
    runs: Annotated[int, typer.Option(metavar="N", help="Measured runs.", min=1)] = 100,
    warmup: Annotated[int, typer.Option(metavar="N", help="Warm-up runs.", min=0)] = 10,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads, the caller's included.", min=0)] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random inputs.", min=0)] = 0,
    dim: Dim = None,
    device: Device = 0,
    libraries: Libraries = None,
    graph: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(metavar="auto|on|off", help="Whether to replay runs of a CUDA bundle as a CUDA graph."),
    ] = "auto",
    profile: Annotated[bool, typer.Option("--profile", help="Also measure each primitive function.")] = False,
    profile_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the profile as JSON; implies --profile.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto or Chrome; implies --profile.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure loading and running on random inputs.

    A CUDA bundle runs on tensors in device memory, and CUDA events measure it.
    """
    from packager.deploy.measure.bench import bench as bench_bundle
    from packager.deploy.measure.random_inputs import parse_sizes

    with shown_progress(quiet=quiet, after=SHORT_SECONDS) as receiver, received(receiver):
        result = bench_bundle(
            bundle,
            runs=runs,
            warmup=warmup,
            threads=threads,
            seed=seed,
            device=device,
            graph=graph,
            libraries=libraries,
            sizes=parse_sizes(dim or []),
            profile=profile or bool(profile_json or trace),
        )
    if result.profile:
        if profile_json:
            write_json(profile_json, result.profile.to_json())
        if trace:
            write_json(trace, result.profile.trace_events(result.model, result.cuda.name if result.cuda else "CPU"))
    if as_json:
        print_json(result.to_json())
        return
    from packager.cli.reports.measure import bench_tables

    print_tables(bench_tables(result))


def tune(
    bundle: BundlePath,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.json", help="Write the records, for later builds.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Keep what FILE.json holds of other models, devices and threads.")
    ] = False,
    bind: Annotated[
        Path | None, typer.Option(metavar="OUT.so", help="Write a copy of the bundle that uses the fastest ones.")
    ] = None,
    tuning: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.json", help="With --bind: measure nothing, take these records. Repeatable."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Measurements of each candidate and alternative.", min=3)
    ] = 30,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Bound on the time; default: as long as a whole search takes.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random inputs.", min=0)] = 0,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads, the caller's included.", min=0)] = 0,
    device: Device = 0,
    libraries: Libraries = None,
    on: On = "",
    gpu: Gpu = "",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure what a bundle can choose from, and keep the fastest. That is candidates of its functions and alternatives
    of its regions.

    Needs neither TVM nor a compiler. The bundle itself is not changed, and results do not depend on the choice. What
    was measured before an interruption is kept beside the records: the same command goes on. With --on a cluster's
    node measures, from the start if it is lost.
    """
    from packager.bundle.tuning_records import merge_records, read_records
    from packager.deploy.load.selection import by_records, foreign, write_selected

    if merge and output is None:
        raise UsageError("--merge is for -o", hint="packager tune BUNDLE -o FILE --merge")
    check_place(on, gpu, device)
    before = [read_records([output])] if merge and output is not None and output.exists() else []
    if tuning:
        from packager.bundle.reader import read_manifest

        if bind is None or output is not None or as_json or on:
            raise UsageError(
                "--tuning is for --bind alone: nothing is measured",
                hint="packager tune BUNDLE --tuning FILE --bind OUT",
            )
        manifest, records = read_manifest(bundle)[0], read_records(tuning)
        selection = by_records(manifest, records, threads)
        if note := foreign(manifest, records):
            print(f"note: {note}", file=sys.stderr)
    else:
        from packager.cli.reports.tune import tune_tables

        journal = None if output is None or on else output.with_name(f"{output.name}.journal")
        if on:
            from packager.pipeline.many.ray_bundles import Place, tune_on

            measure = functools.partial(tune_on, Place(on, gpu))
        else:
            from packager.deploy.measure.tune import tune as tune_bundle

            measure = functools.partial(tune_bundle, device=device, journal=journal)
        with shown_progress(quiet=quiet) as receiver:
            result = measure(
                bundle,
                rounds=rounds,
                seed=seed,
                threads=threads,
                libraries=libraries,
                seconds=seconds,
                progress=receiver,
            )
        selection = result.selection
        if output is not None:
            text = merge_records([*before, result.records]).to_json()
            write_whole(output, lambda stream: stream.write(text))
        if journal is not None:
            journal.unlink(missing_ok=True)
        for warning in result.placement.warnings if result.placement else ():
            print(f"warning: {warning}", file=sys.stderr)
        if as_json:
            print_json(result.to_json())
        else:
            print_tables(tune_tables(result))
    if bind is not None:
        write_whole(bind, lambda stream: write_selected(bundle, stream, selection))


COMMANDS = (run, bench, tune)

"""Build trials, and what is linked with their records, on all cores of a machine in a bounded time.

A kernel of cutlass depends on no model, so what trials ask for is compiled into the cache first, each kernel once, on
all cores; bundles are built meanwhile as soon as theirs are there. What has no time left is not built.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import packager
from benchmarks.gpu.cublas import pack
from benchmarks.gpu.placement.cases import BY_NAME, Case, chosen, exported
from benchmarks.gpu.placement.processes import Step, step

KERNELS = "kernels.json"


def build(folder: Path, arch: str, home: str, only: str, *, what: str, jobs: int, seconds: float, packed: bool) -> None:
    """Build the trials of the cases, bundles of each backend ``alone``, or those ``placed`` by records.

    ``packed`` bundles are compressed, to be carried.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    end = time.monotonic() + seconds

    def one(case: Case, kind: str) -> None:
        words = ["one", case.name, kind, str(folder), arch, home, str(max(1, cores // jobs)), str(int(packed))]
        print("built", case.name, kind, step(words, end), flush=True)

    def submit(case: Case) -> None:
        if what != "placed" or (folder / f"{case.name}.records.json").exists():
            for kind in case.alone if what == "alone" else (what,):
                builders.submit(one, case, kind)

    with ThreadPoolExecutor(jobs) as builders, ThreadPoolExecutor(cores) as askers:
        if what != "trial":  # which has the kernels of the others, too
            list(map(submit, chosen(only)))
            return
        asked = [(c, askers.submit(step, ["ask", c.name, str(folder), arch, home], end)) for c in chosen(only)]
        for cases, kernels in waves(asked, folder, cores):
            (folder / KERNELS).write_text(json.dumps(kernels))
            done = step(["kernels", str(folder), arch, home, str(cores)], end)
            print("kernels of", *(case.name for case in cases), sum(map(len, kernels.values())), done, flush=True)
            list(map(submit, cases))


def waves(
    asked: Iterable[tuple[Case, Future[Step]]], folder: Path, most: int
) -> Iterator[tuple[list[Case], dict[str, list[Any]]]]:
    """Yield cases, in order, with the kernels that these are the first to ask for, ``most`` or more, as a portfolio."""
    from packager.backends.cutlass.portfolio import GROUPS

    known: set[str] = set()
    cases: list[Case] = []
    new: dict[str, list[Any]] = {group: [] for group in GROUPS}
    for case, future in asked:
        done, path = future.result(), folder / f"{case.name}.{KERNELS}"
        print("asked", case.name, done, flush=True)
        cases.append(case)
        for group, config in json.loads(path.read_text()) if path.exists() else []:
            if (text := json.dumps([group, config])) not in known:
                known.add(text)
                new[group].append(config)
        if sum(map(len, new.values())) >= most:
            yield cases, new
            cases, new = [], {group: [] for group in GROUPS}
    if cases:
        yield cases, new


def ask(case: Case, folder: Path, arch: str, home: str) -> None:
    """Write the kernels of cutlass that the trial of a case asks for, without compiling."""
    from benchmarks.cutlass.portfolio import asked
    from packager.backends.cutlass.portfolio import group_of, to_json
    from packager.pipeline.options import BuildOptions

    path = folder / f"{case.name}.{KERNELS}"
    if path.exists():
        return
    model, targets_of_trial = exported(case, folder), case.targets(arch, home)
    options = BuildOptions(model, targets=targets_of_trial, place="trial", precision=case.half)
    found = [[group_of(kernel_arch, arch), to_json(config)] for config, kernel_arch in asked(options)]
    path.write_text(json.dumps(found))


def compile_kernels(folder: Path, arch: str, home: str, jobs: int) -> None:
    """Compile the kernels that were asked for into the user's cache; each stays if this is interrupted."""
    from packager.backends.base import Context
    from packager.backends.cutlass.portfolio import compile_portfolio, kernels_of, read_portfolio
    from packager.bundle.staging import temporary_folder
    from packager.codegen.cache import Cache
    from packager.codegen.toolchain import find_toolchain
    from packager.targets.target_list import parse_targets

    cuda = f"cuda -arch={arch}" + (f" -home={home}" if home else "")
    targets = parse_targets([cuda, "cutlass"])
    (target,) = targets.specialized
    kernels = kernels_of(read_portfolio(str(folder / KERNELS)), tuple(target.options.arch))
    with temporary_folder("kernels") as workdir:
        toolchain = find_toolchain(targets.host.machine)
        context = Context(workdir, toolchain, targets.base_of(target), jobs, Cache.of_user())
        compile_portfolio(kernels, context, target.options)


def build_one(name: str, kind: str, folder: Path, arch: str, home: str, jobs: int, *, packed: bool) -> None:
    """Build a bundle of a case: its ``trial``, the one ``placed`` by records, or that of one backend by its kind."""
    case = BY_NAME[name]
    places: dict[str, str | Path] = {"trial": "trial", "placed": folder / f"{name}.records.json"}
    targets = case.targets(arch, home, case.alone.get(kind))
    output = folder / f"{name}-{kind}.so"
    model, place = exported(case, folder), places.get(kind, "greedy")
    packager.build(model, output, targets=targets, place=place, precision=case.half, jobs=jobs)
    if packed:
        pack(output)


def do_step(words: Sequence[str]) -> None:
    """Do a step of ``build`` in this process: ``ask``, ``kernels`` or ``one``."""
    match list(words):
        case ["ask", name, folder, arch, home]:
            ask(BY_NAME[name], Path(folder), arch, home)
        case ["kernels", folder, arch, home, jobs]:
            compile_kernels(Path(folder), arch, home, int(jobs))
        case ["one", name, kind, folder, arch, home, jobs, packed]:
            build_one(name, kind, Path(folder), arch, home, int(jobs), packed=packed == "1")
        case _:
            raise SystemExit(f"error: no such step: {' '.join(words)}")

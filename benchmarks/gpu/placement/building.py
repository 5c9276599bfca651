"""Build trials, and what is linked with their records, on all cores of a machine in a bounded time.

A kernel of cutlass depends on no model, so what all trials ask for is compiled first, each kernel once, into the cache;
then the bundles are built, several at a time. What has no time left is not built.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import packager
from benchmarks.gpu.placement.cases import BY_NAME, Case, chosen, exported
from benchmarks.gpu.placement.processes import step

KERNELS = "kernels.json"
KERNELS_PART = 0.7
"""Part of the time after which no more kernels are compiled in advance."""


def build(folder: Path, arch: str, home: str, only: str, *, what: str, jobs: int, seconds: float) -> None:
    """Build the trials of the cases, bundles of each backend ``alone``, or those ``placed`` by records."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    end = time.monotonic() + seconds
    cases = chosen(only)
    if what == "trial":  # which has the kernels of the others, too
        _kernels_of_all(cases, folder, arch, home, end - (1 - KERNELS_PART) * seconds)
    wanted = [(case, kind) for case in cases for kind in (case.alone if what == "alone" else (what,))]
    if what == "placed":
        wanted = [(case, kind) for case, kind in wanted if (folder / f"{case.name}.records.json").exists()]

    def one(entry: tuple[Case, str]) -> None:
        case, kind = entry
        done = step(["one", case.name, kind, str(folder), arch, home, str(max(1, cores // jobs))], end)
        print("built", case.name, kind, done, flush=True)

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(one, wanted))


def _kernels_of_all(cases: Sequence[Case], folder: Path, arch: str, home: str, end: float) -> None:
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as threads:
        asked = threads.map(lambda case: step(["ask", case.name, str(folder), arch, home], end), cases)
        for case, done in zip(cases, asked, strict=True):
            print("asked", case.name, done, flush=True)
    print("kernels:", join_kernels(cases, folder), flush=True)
    print("kernels", step(["kernels", str(folder), arch, home, str(cores)], end), flush=True)


def ask(case: Case, folder: Path, arch: str, home: str) -> None:
    """Write the kernels of cutlass that the trial of a case asks for, without compiling."""
    from packager.backends.cutlass.module import kernels_for
    from packager.backends.cutlass.portfolio import group_of, to_json
    from packager.pipeline.import_models import import_model
    from packager.pipeline.options import BuildOptions
    from packager.pipeline.place import place
    from packager.pipeline.request import make_build_request
    from packager.placement.preparation import preparation_for
    from packager.transforms.prepare import prepare

    path = folder / f"{case.name}.{KERNELS}"
    if path.exists():
        return
    model, targets_of_trial = exported(case, folder), case.targets(arch, home)
    request = make_build_request(BuildOptions(model, targets=targets_of_trial, place="trial", precision=case.half))
    targets = request.targets.specialized
    placement = place(request, prepare(import_model(request), preparation_for(targets), request.targets.device))
    taken = [verdict.partition for verdict in placement.verdicts if verdict.backend == "cutlass" and not verdict.reason]
    target = next(target for target in targets if target.kind == "cutlass")
    found = [[group_of(kernel_arch, arch), to_json(config)] for config, kernel_arch in kernels_for(taken, target)]
    path.write_text(json.dumps(found))


def join_kernels(cases: Sequence[Case], folder: Path) -> str:
    """Write what the cases ask for as one portfolio, those of the first cases first; return how many these are."""
    groups: dict[str, dict[str, None]] = {"hopper": {}, "besides": {}, "plain": {}}
    counts = []
    for case in cases:
        path = folder / f"{case.name}.{KERNELS}"
        found = json.loads(path.read_text()) if path.exists() else []
        before = sum(map(len, groups.values()))
        for group, config in found:
            groups[group][json.dumps(config)] = None
        counts.append(f"{case.name} {len(found)}, {sum(map(len, groups.values())) - before} of them new")
    portfolio = {group: [json.loads(text) for text in texts] for group, texts in groups.items()}
    (folder / KERNELS).write_text(json.dumps(portfolio))
    return f"{sum(map(len, groups.values()))} ({'; '.join(counts)})"


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


def build_one(name: str, kind: str, folder: Path, arch: str, home: str, jobs: int) -> None:
    """Build a bundle of a case: its ``trial``, the one ``placed`` by records, or that of one backend by its kind."""
    case = BY_NAME[name]
    places: dict[str, str | Path] = {"trial": "trial", "placed": folder / f"{name}.records.json"}
    targets = case.targets(arch, home, case.alone.get(kind))
    output = folder / f"{name}-{kind}.so"
    model, place = exported(case, folder), places.get(kind, "greedy")
    packager.build(model, output, targets=targets, place=place, precision=case.half, jobs=jobs, golden=0)


def do_step(words: Sequence[str]) -> None:
    """Do a step of ``build`` in this process: ``ask``, ``kernels`` or ``one``."""
    match list(words):
        case ["ask", name, folder, arch, home]:
            ask(BY_NAME[name], Path(folder), arch, home)
        case ["kernels", folder, arch, home, jobs]:
            compile_kernels(Path(folder), arch, home, int(jobs))
        case ["one", name, kind, folder, arch, home, jobs]:
            build_one(name, kind, Path(folder), arch, home, int(jobs))

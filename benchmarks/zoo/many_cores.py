"""The zoo on a machine of many cores: builds several models at once, then measures several at once.

    python -m benchmarks.zoo.many_cores --engines packager onnxruntime openvino

Options are those of ``benchmarks.zoo.compare``, whose records it writes. Every build has two cores and no cache, and
its seconds are kept. A model is measured on cores of its own, one thread of each, that none of the others shares.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.cpu import engines
from benchmarks.cpu.compare import Record, measure
from benchmarks.cpu.engines import Settings, compile_program
from benchmarks.harness.measure import finish, versions, write
from benchmarks.zoo import compare
from benchmarks.zoo.models import ZOO, make

CORES = 2
Cores = tuple[int, ...]
T = TypeVar("T")


def core_groups(size: int = CORES) -> tuple[list[Cores], list[Cores]]:
    """Return the CPUs of this machine in groups, and those of them in groups that share no core with another."""
    return _groups(sorted(os.sched_getaffinity(0)), size), _groups([core[0] for core in _cores()], size)


def whole_cores(size: int) -> list[Cores]:
    """Return the CPUs of this machine in groups of ``size`` cores, each with all its CPUs."""
    return [tuple(itertools.chain.from_iterable(group)) for group in _groups(_cores(), size)]


def _cores() -> list[Cores]:
    """Return the CPUs of each core."""
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    found: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        found.setdefault(Path(topology.format(cpu)).read_text(), []).append(cpu)
    return [tuple(cpus) for cpus in found.values()]


def _groups(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(items[start : start + size]) for start in range(0, len(items) - size + 1, size)]


def _keep_to(groups: Queue[Cores]) -> None:
    os.sched_setaffinity(0, groups.get())
    torch.set_num_threads(CORES)  # it has counted all the cores of the machine


def process_pool(groups: Sequence[Cores]) -> ProcessPoolExecutor:
    """Return a process for each group of cores, kept to it."""
    context = get_context("spawn")
    waiting: Queue[Cores] = context.Queue()
    for group in groups:
        waiting.put(group)
    return ProcessPoolExecutor(len(groups), context, _keep_to, (waiting,))


def _bundle(name: str, workdir: Path) -> Path:
    return workdir / "bundles" / name / f"{name}.so"


def build(name: str, workdir: Path, targets: tuple[str, ...]) -> float:
    """Build a model without a cache, and return the seconds. Raises EngineError."""
    model = make(name, workdir / "zoo")
    folder = _bundle(name, workdir).parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    engines.build(model, folder, *(part for target in targets for part in ("-t", target)))
    return time.perf_counter() - start


def compare_one(name: str, build_s: float, arguments: argparse.Namespace, speeds: tuple[float, float]) -> list[Record]:
    """Measure a model that has been built, with each number of threads; profile it where it is slow."""
    workdir: Path = arguments.workdir
    settings = Settings(workdir, bundle=_bundle(name, workdir))
    model = make(name, workdir / "zoo")
    records = []
    for threads in arguments.threads:
        record = measure(model, threads, arguments.engines, settings, arguments) | {"build_s": build_s}
        if arguments.profile and compare.is_slow(record):
            record["slow"] = compare.slow_functions(_bundle(name, workdir), *speeds)
        records.append(record)
    return records


def as_they_end(futures: Mapping[Future[T], str]) -> Iterator[tuple[str, T]]:
    """Return models and what was computed for them, as they end; what fails is told and left out."""
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except Exception as error:  # of one model: the others go on
            print(f"{futures[future]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build all, then measure all."""
    arguments = compare.parse(argv)
    workdir, output = arguments.workdir, arguments.output
    kept: list[Record] = []
    if arguments.append and output.exists():
        kept = json.loads(output.read_text())["figures"]["configurations"]
    compile_program(workdir)
    versions()  # a package that is missing is told before the work, not after it
    speeds = compare.speeds(workdir) if arguments.profile else (0.0, 0.0)
    for_builds, for_turns = core_groups()
    measured: list[Record] = []
    result = compare.report(kept, measured, arguments.engines)
    with process_pool(for_builds) as pool:
        builds = {
            pool.submit(build, name, workdir, tuple(arguments.target)): name for name in compare.wanted(arguments)
        }
        seconds = dict(as_they_end(builds))
    with process_pool(for_turns) as pool:
        turns = {pool.submit(compare_one, name, build_s, arguments, speeds): name for name, build_s in seconds.items()}
        for name, records in as_they_end(turns):
            measured += records
            places = [(name, threads) for threads in arguments.threads]
            kept = [other for other in kept if (other["model"], other["threads"]) not in places] + records
            kept.sort(key=lambda other: ([*ZOO].index(other["model"]), other["threads"]))
            result = compare.report(kept, measured, arguments.engines)
            write(result, arguments)
    return finish(result, arguments)


if __name__ == "__main__":
    sys.exit(main())

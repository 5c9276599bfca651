"""Build a matrix of bundles: each model for each Target and dims of a file. A build that fails ends no other.

Each is a process of its own, ``packager build``, so that one that is killed takes no other along.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from packager.bundle import strict_json
from packager.codegen.workers import workers
from packager.errors import UsageError
from packager.pipeline.many.process import Case, Outcome, Processes
from packager.progress import counted, warn

CORES_OF_A_BUILD = 4
"""The cores that a build has use for, on average."""
MOST_TASKS = 64
"""Tasks that wait for a cluster at a time: it has a thread here for each."""


@dataclass(frozen=True)
class MatrixFile:
    """A file of builds. Texts are options as after ``packager build``; paths are relative to the file's folder.

    ``models``, ``targets`` and ``dims`` give each of theirs a name; a build is one of each, ``MODEL-TARGET-DIMS``.
    ``options`` are those of all builds. ``exclude`` has patterns of names that are not built: ``*-gpu-large``.
    """

    models: dict[str, str]
    targets: dict[str, str] = field(default_factory=dict)
    dims: dict[str, str] = field(default_factory=dict)
    options: str = ""
    exclude: tuple[str, ...] = ()
    schema_version: Literal[1] = 1


Run = Callable[[Case], Outcome]


def read_matrix(path: Path, output: Path, only: Sequence[str] = ()) -> list[Case]:
    """Return the builds of a file, with bundles in the folder ``output``; ``only`` are patterns of names.

    Raises UsageError.
    """
    try:
        content = strict_json.read(MatrixFile, tomllib.loads(path.read_text(encoding="utf-8")))
        cases = list(_cases(content, path.absolute().parent, output.absolute()))
    except (OSError, ValueError) as failure:  # TOMLDecodeError, MismatchError, quotes that do not end
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise UsageError(
            f"cannot read the builds of {path}: {reason}",
            hint='for example: models = {digits = "digits.onnx"}, targets = {cpu = "-t llvm"}',
        ) from None
    left = [case for case in cases if not only or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in only)]
    if not left:
        raise UsageError(f"{path}: there is nothing to build", hint="look at exclude and --only")
    return left


def _cases(content: MatrixFile, folder: Path, output: Path) -> list[Case]:
    axes = (content.models, content.targets or {"": ""}, content.dims or {"": ""})
    for name in (name for axis in axes for name in axis):
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", name):
            raise ValueError(f"{name!r} cannot be part of a file's name")
    cases = []
    for chosen in itertools.product(*(axis.items() for axis in axes)):
        name = "-".join(part for part, _ in chosen if part)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in content.exclude):
            continue
        arguments = [word for text in (*(text for _, text in chosen), content.options) for word in shlex.split(text)]
        if not {"-o", "--output", "-j", "--jobs"}.isdisjoint(arguments):
            raise ValueError(f"{name}: -o and -j are those of the matrix")
        suffix = ".a" if "--static" in arguments else ".so"
        cases.append(Case(name, tuple(arguments), folder, output / f"{name}{suffix}"))
    return cases


def build_matrix(cases: Sequence[Case], *, jobs: int | None = None, at_once: int | None = None) -> list[Outcome]:
    """Build all on this machine, and return what became of each, in order; see ``build_all``.

    ``at_once`` builds share ``jobs`` compilers; by default all cores, and as many builds as have use for them.
    """
    compilers = jobs or os.cpu_count() or 1
    together = at_once or max(1, compilers // CORES_OF_A_BUILD)
    processes = Processes(max(1, compilers // together))
    return build_all(cases, processes.build, processes.stop, at_once=together)


def build_matrix_on(cases: Sequence[Case], cluster: str, *, jobs: int | None = None) -> list[Outcome]:
    """Build all on a cluster, ``ray`` or ``ray://HOST:PORT``, each with ``jobs`` cores; see ``build_all``.

    Nodes get a copy of the folder of the builds' file. Raises UsageError, ToolchainError.
    """
    from packager.pipeline.many.ray_builds import RayBuilds
    from packager.pipeline.many.ray_tasks import opened_tasks

    with opened_tasks(cluster, cases[0].folder) as tasks:
        builds = RayBuilds(tasks, jobs or CORES_OF_A_BUILD)
        return build_all(cases, builds.build, tasks.stop, at_once=min(len(cases), MOST_TASKS))


def build_all(cases: Sequence[Case], run: Run, stop: Callable[[], None], *, at_once: int) -> list[Outcome]:
    """Have ``run`` build all, ``at_once`` at a time, and return what became of each, in order. Failures are warnings.

    After an interruption ``stop`` ends what runs.
    """
    cases[0].output.parent.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    with counted("building", len(cases), at_once=at_once) as steps, workers(at_once) as pool:
        waiting: set[Future[Outcome]] = {pool.submit(run, case) for case in cases}
        try:
            while waiting:
                # Wakes up to notice an interruption, which a wait without end would sleep through.
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for outcome in (future.result() for future in done):
                    outcomes[outcome.name] = outcome
                    steps.count(1, outcome.seconds)
                    if outcome.error:
                        warn(f"{outcome.name} failed: {outcome.error.splitlines()[0]}")
        except BaseException:
            for future in waiting:
                future.cancel()
            stop()
            raise
    return [outcomes[case.name] for case in cases]

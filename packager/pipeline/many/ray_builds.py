"""Builds as tasks of Ray (https://docs.ray.io), on the machines of a cluster.

A task is a process ``packager build`` on a node, which has packager installed; its files come back as bytes. Nothing
here is imported unless a cluster is asked for.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from pathlib import Path

from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.staging import replacing, temporary_folder
from packager.pipeline.cache_key import package_versions
from packager.pipeline.many.process import Case, Outcome, Processes, interrupted
from packager.pipeline.many.ray_tasks import Answer, TaskError, Tasks
from packager.progress import warn
from packager.resources import PACKAGE, folder


class RayBuilds:
    """Builds on a cluster, ``jobs`` cores each, in the folder that nodes got a copy of."""

    def __init__(self, tasks: Tasks, jobs: int) -> None:
        self._tasks, self._jobs = tasks, jobs
        self._told: set[str] = set()
        self._software = _software()

    def build(self, case: Case) -> Outcome:
        """Build one on a node, write its files here, and return what became of it."""
        start = time.monotonic()
        if self._tasks.stopped:
            return interrupted(case)
        arguments = (case.name, case.arguments, case.output.name, self._jobs)
        try:
            built: Answer = self._tasks.run(_build, *arguments, num_cpus=self._jobs, name=f"packager build {case.name}")
        except TaskError as failure:
            seconds = time.monotonic() - start
            return Outcome(case.name, case.output, seconds, code=70, error=f"its task failed: {failure}")
        if built.software != self._software and built.node not in self._told:
            self._told.add(built.node)
            warn(f"node {built.node} has other versions of packager or its packages: its bundles may differ from yours")
        for name, content in built.files.items():
            with replacing(case.output.with_name(name)) as temporary:
                temporary.write_bytes(content)
        outcome: Outcome = built.result
        return dataclasses.replace(outcome, output=case.output, seconds=time.monotonic() - start)


def _build(name: str, arguments: tuple[str, ...], file: str, jobs: int) -> Answer:
    """Build in the folder that the node got. Runs on a node."""
    processes = Processes(jobs)
    with temporary_folder("ray") as output:  # of a task that is cancelled the next one removes it
        try:
            outcome = processes.build(Case(name, arguments, Path.cwd(), output / file))
            files = {path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.is_file()}
            return Answer(outcome, files if not outcome.code else {}, _software(), platform.node())
        finally:
            processes.stop()


def _software() -> str:
    """Return a hash of what bundles depend on besides their inputs and the compiler."""
    own = [digest_of_folder(PACKAGE, "*.py"), digest_of_folder(folder("templates"), "*")]
    return digest([own, digest_of_folder(folder("runtime_stub"), "*.[ch]"), package_versions()])

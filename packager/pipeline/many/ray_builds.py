"""Builds as tasks of Ray (https://docs.ray.io), on the machines of a cluster.

A task is a process ``packager build`` on a node, which has packager installed; its files come back as bytes. Ray
starts a task again whose node is lost. Nothing here is imported unless a cluster is asked for.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from pathlib import Path
from typing import Any

from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.staging import replacing, temporary_folder
from packager.errors import last_line
from packager.pipeline.cache_key import package_versions
from packager.pipeline.many.process import Case, Outcome, Processes
from packager.pipeline.many.ray_cluster import RETRIES, join
from packager.progress import warn
from packager.resources import PACKAGE, folder


@dataclasses.dataclass(frozen=True)
class Built:
    """What a task hands back: the outcome, the files of the bundle by name, and what the node builds with."""

    outcome: Outcome
    files: dict[str, bytes]
    software: str
    node: str


class RayBuilds:
    """Builds on a cluster: ``ray`` is that of ``$RAY_ADDRESS``, or else one on this machine; or ``ray://HOST:PORT``.

    ``files`` is the folder that nodes get a copy of, and ``jobs`` are the cores of a build. Raises UsageError if there
    is no such cluster, ToolchainError if the package ray is missing.
    """

    def __init__(self, address: str, files: Path, jobs: int) -> None:
        self._ray, self._jobs = join(address, files), jobs
        self._running: set[Any] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._told: set[str] = set()
        self._software = _software()
        self._task = self._ray.remote(_build)

    def build(self, case: Case) -> Outcome:
        """Build one on a node, write its files here, and return what became of it."""
        start = time.monotonic()
        options = self._task.options(num_cpus=self._jobs, max_retries=RETRIES, name=f"packager build {case.name}")
        reference = None
        try:
            with self._lock:
                if self._stopped:
                    return Outcome(case.name, case.output, 0.0, code=130, error="interrupted")
                reference = options.remote(case.name, case.arguments, case.output.name, self._jobs)
                self._running.add(reference)
            built: Built = self._ray.get(reference)
        except self._ray.exceptions.RayError as failure:  # lost too often, cancelled, or packager is not on the node
            seconds = time.monotonic() - start
            return Outcome(case.name, case.output, seconds, code=70, error=f"its task failed: {last_line(failure)}")
        finally:
            with self._lock:
                self._running.discard(reference)
        if built.software != self._software and built.node not in self._told:
            self._told.add(built.node)
            warn(f"node {built.node} has other versions of packager or its packages: its bundles may differ from yours")
        for name, content in built.files.items():
            with replacing(case.output.with_name(name)) as temporary:
                temporary.write_bytes(content)
        return dataclasses.replace(built.outcome, output=case.output, seconds=time.monotonic() - start)

    def stop(self) -> None:
        """Cancel what runs, and begin no more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for reference in running:
            self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started for this ends."""
        self._ray.shutdown()


def _build(name: str, arguments: tuple[str, ...], file: str, jobs: int) -> Built:
    """Build in the folder that the node got. Runs on a node."""
    processes = Processes(jobs)
    with temporary_folder("ray") as output:  # of a task that is cancelled the next one removes it
        try:
            outcome = processes.build(Case(name, arguments, Path.cwd(), output / file))
            files = {path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.is_file()}
            return Built(outcome, files if not outcome.code else {}, _software(), platform.node())
        finally:
            processes.stop()


def _software() -> str:
    """Return a hash of what bundles depend on besides their inputs and the compiler."""
    own = [digest_of_folder(PACKAGE, "*.py"), digest_of_folder(folder("templates"), "*")]
    return digest([own, digest_of_folder(folder("runtime_stub"), "*.[ch]"), package_versions()])

"""Functions of packager as tasks of Ray: it starts one again whose node is lost, and all can be cancelled.

Tasks run where packager is installed too; what they raise of packager's errors is raised here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.codegen.workers import Running
from packager.errors import PackagerError, last_line
from packager.pipeline.many.ray_cluster import RETRIES, join

_TICK = 0.3  # seconds


@dataclass(frozen=True)
class Answer:
    """What a task hands back: its result, files by name, and a hash of the software with which a node did it."""

    result: Any
    files: dict[str, bytes]
    software: str
    node: str


class TaskError(Exception):
    """A task that failed by itself: cancelled, lost too often, or packager is not on its node."""


class Tasks:
    """Tasks of a cluster, used by several threads. ``files`` is a folder that nodes get a copy of.

    Raises UsageError if there is no such cluster, ToolchainError if the package ray is missing.
    """

    def __init__(self, address: str, files: Path | None = None) -> None:
        self.ray = join(address, files)
        self._running: Running[Any] = Running()

    @property
    def stopped(self) -> bool:
        """Whether all tasks were cancelled."""
        return self._running.stopped

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        meanwhile: Callable[[], object] | None = None,
        **options: Any,
    ) -> Any:
        """Return what a function returns on a node. ``options`` are Ray's, and say what it needs there.

        ``meanwhile`` is called several times a second until then. Raises TaskError, and the PackagerError that the
        function raises.
        """
        task = self.ray.remote(function).options(max_retries=RETRIES, **options)
        errors = self.ray.exceptions
        try:
            with self._running.begun(lambda: task.remote(*arguments)) as reference:
                if reference is None:
                    raise TaskError("interrupted")
                while meanwhile is not None and not self.ray.wait([reference], timeout=_TICK)[0]:
                    meanwhile()
                return self.ray.get(reference)
        except errors.RayTaskError as failure:
            if isinstance(failure.cause, PackagerError):
                raise failure.cause from None
            raise TaskError(last_line(failure)) from None
        except (errors.RayError, ConnectionError) as failure:
            raise TaskError(last_line(failure)) from None

    def stop(self) -> None:
        """Cancel what runs, and begin no more."""
        for reference in self._running.stop():
            self.ray.cancel(reference, force=True)

    def close(self) -> None:
        """Cancel what runs, and leave the cluster; one that was started for this ends."""
        self.stop()
        self.ray.shutdown()


@contextlib.contextmanager
def opened_tasks(address: str, files: Path | None = None) -> Iterator[Tasks]:
    """Yield a cluster, ``ray`` or ``ray://HOST:PORT``, and leave it at the end. Raises UsageError, ToolchainError."""
    with contextlib.redirect_stdout(sys.stderr):  # where Ray prints what it has to say of its nodes
        tasks = Tasks(address, files)
        try:
            yield tasks
        finally:
            tasks.close()

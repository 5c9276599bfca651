"""Calls of one build as tasks of Ray: kernels that take minutes compile on the nodes of a cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from packager.codegen.remote import Remote
from packager.pipeline.many.ray_tasks import TaskError, Tasks, opened_tasks
from packager.progress import warn

MEGABYTE = 1 << 20


@contextlib.contextmanager
def opened_remote(cluster: str | None) -> Iterator[Remote | None]:
    """Yield a cluster, ``ray`` or ``ray://HOST:PORT``, and leave it at the end; None if none is asked for.

    Raises UsageError, ToolchainError.
    """
    if cluster is None:
        yield None
        return
    with opened_tasks(cluster) as tasks:
        yield RayCalls(tasks)


class RayCalls:
    """Calls functions on nodes."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._warned = False

    @property
    def at_once(self) -> int:
        """The cores of the cluster."""
        return max(1, int(self._tasks.ray.cluster_resources().get("CPU", 1)))

    def call(self, function: Callable[..., Any], *arguments: Any, megabytes: float) -> Any:
        """Return what a function returns on a node; None if its nodes are lost again and again."""
        name = f"packager {function.__name__}"
        try:
            return self._tasks.run(function, *arguments, num_cpus=1, memory=int(megabytes * MEGABYTE), name=name)
        except TaskError as failure:
            with self._lock:
                first, self._warned = not self._warned and not self._tasks.stopped, True
            if first:
                warn(f"the cluster could not compile, and this machine does: {failure}")
            return None

    def stop(self) -> None:
        """Cancel all calls."""
        self._tasks.stop()

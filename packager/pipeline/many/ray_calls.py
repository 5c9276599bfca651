"""Calls of one build as tasks of Ray: kernels that take minutes compile on the nodes of a cluster."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from packager.codegen.remote import Remote
from packager.errors import PackagerError, last_line
from packager.pipeline.many.ray_cluster import RETRIES, join
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
    with contextlib.redirect_stdout(sys.stderr):  # where Ray prints what it has to say of its nodes
        calls = RayCalls(cluster)
        try:
            yield calls
        finally:
            calls.stop()


class RayCalls:
    """Calls functions on nodes. Raises UsageError if there is no such cluster, ToolchainError without the package."""

    def __init__(self, address: str) -> None:
        self._ray = join(address)
        self._running: set[Any] = set()
        self._lock = threading.Lock()
        self._stopped = self._warned = False

    @property
    def at_once(self) -> int:
        """The cores of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def call(self, function: Callable[..., Any], *arguments: Any, megabytes: float) -> Any:
        """Return what a function returns on a node; None if its nodes are lost again and again."""
        task = self._ray.remote(function).options(
            num_cpus=1, memory=int(megabytes * MEGABYTE), max_retries=RETRIES, name=f"packager {function.__name__}"
        )
        with self._lock:
            if self._stopped:
                return None
            reference = task.remote(*arguments)
            self._running.add(reference)
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as failure:
            if isinstance(failure.cause, PackagerError):
                raise failure.cause from None
            self._fail(failure)
        except self._ray.exceptions.RayError as failure:
            self._fail(failure)
        finally:
            with self._lock:
                self._running.discard(reference)
        return None

    def _fail(self, failure: Exception) -> None:
        """Warn of the first failure."""
        with self._lock:
            first, self._warned = not self._warned and not self._stopped, True
        if first:
            warn(f"the cluster could not compile, and this machine does: {last_line(failure)}")

    def stop(self) -> None:
        """Cancel all calls, and leave the cluster; one that was started for this ends."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            running = list(self._running)
        for reference in running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

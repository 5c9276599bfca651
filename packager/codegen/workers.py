"""Threads that run tools, and the end of the tools when the work is given up.

``toolchain.run`` finds the pool that it runs for through a context variable. Threads do not inherit them: those of
``workers`` do, all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """The set of what runs, processes or a cluster's tasks, for several threads. Stopped, nothing begins any more."""

    def __init__(self) -> None:
        self._running: set[T] = set()
        self._lock = threading.Lock()
        self.stopped = False

    @contextmanager
    def begun(self, begin: Callable[[], T]) -> Iterator[T | None]:
        """Yield what ``begin`` returns, which runs until the block ends; None if all is stopped."""
        with self._lock:
            begun = None if self.stopped else begin()
            if begun is not None:
                self._running.add(begun)
        try:
            yield begun
        finally:
            if begun is not None:
                with self._lock:
                    self._running.discard(begun)

    def stop(self) -> list[T]:
        """Let nothing begin any more, and return what runs; whoever calls it again has nothing to end."""
        with self._lock:
            running = [] if self.stopped else list(self._running)
            self.stopped = True
        return running


_TOOLS: ContextVar[Running[subprocess.Popen[str]] | None] = ContextVar("tools", default=None)


@contextmanager
def workers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that inherit the context variables of the thread that makes it.

    If the block raises, an interruption or the error of one tool, the tools that still run for it are killed.
    """
    tools: Running[subprocess.Popen[str]] = Running()
    token = _TOOLS.set(tools)
    inherited = copy_context()

    def inherit() -> None:
        for variable, value in inherited.items():
            variable.set(value)

    try:
        with ThreadPoolExecutor(count, initializer=inherit) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in tools.stop():
                    kill(process)
                raise
    finally:
        _TOOLS.reset(token)


@contextmanager
def tool_process(start: Callable[[], subprocess.Popen[str]]) -> Iterator[subprocess.Popen[str]]:
    """Yield a process, which is killed if the block raises, or if the work that it is part of is given up.

    Raises CancelledError where that was before it began.
    """
    tools = _TOOLS.get() or Running()
    with tools.begun(start) as process:
        if process is None:
            raise CancelledError
        with process:
            try:
                yield process
            except BaseException:
                kill(process)
                raise


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and what it has started, which nvcc and gcc leave behind."""
    if process.poll() is None:
        _kill_tree(process.pid)


def _kill_tree(pid: int) -> None:
    # A stopped process starts no more, and its children keep their numbers: it does not wait for them either.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    for threads in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in threads.read_text().split():
                _kill_tree(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

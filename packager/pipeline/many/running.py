"""What runs, and can be ended: processes of this machine, tasks of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """The set of what runs, for several threads. Once it is stopped nothing begins any more."""

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
